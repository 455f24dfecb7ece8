"""Makes the certificates of a run: one authority, and one certificate for each participant.

A participant's role stands in its certificate, signed by the authority: a member can take part in training but
not command it, an operator can command but not take part. Keys are written readable by their owner alone.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from farstep.membership.tls import COORDINATOR_NAME

__all__ = ["Certificate", "CertificateError", "PeerRole", "make_certificates", "role_of"]

VALID_DAYS = 397
"""Browsers refuse certificates that are valid for longer."""

CLOCK_SKEW = datetime.timedelta(hours=1)
"""Certificates count from so long ago, since clocks of sites differ."""

AUTHORITY = "ca"


class CertificateError(ValueError):
    """Certificates cannot be made; the message names the file or name and what would be valid."""


class PeerRole(StrEnum):
    """What a certificate lets its holder do."""

    COORDINATOR = "coordinator"
    MEMBER = "member"
    OPERATOR = "operator"


class Certificate(NamedTuple):
    """One that was made, or was there already."""

    name: str
    role: PeerRole
    path: Path
    is_new: bool


def make_certificates(
    directory: Path,
    names: list[str],
    *,
    operators: tuple[str, ...] = ("operator",),
    hosts: tuple[str, ...] = (),
    valid_days: int = VALID_DAYS,
) -> list[Certificate]:
    """Makes the authority, the coordinator's, the members' and the operators' certificates that are missing.

    Writes `ca.pem`, `ca.key`, and for every name `NAME.pem` and `NAME.key`; operators also get `NAME.p12` without
    a password, for a browser. What is there stays. `ca.key` is needed to make further ones and nowhere else.

    Args:
        directory: where they go; made if missing.
        names: replica groups.
        operators: people or tools that may drain, evict and override.
        hosts: names and addresses under which browsers reach coordinators; members do not look at them.
        valid_days: lifetime in days.

    Raises:
        CertificateError: a name cannot be used, or the directory cannot be written.
    """
    if not 1 <= valid_days <= 3650:
        raise CertificateError(f"valid_days is {valid_days}; valid: 1 to 3650")
    roles = dict.fromkeys(["coordinator"], PeerRole.COORDINATOR)
    for name in (*names, *operators):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) or name in (AUTHORITY, "coordinator"):
            raise CertificateError(
                f"{name!r} cannot be the name of a certificate; valid: letters, digits, '.', '_' and '-', "
                "and neither 'ca' nor 'coordinator'"
            )
        if name in names and name in operators:
            raise CertificateError(f"{name!r} is both a member and an operator; each needs a name of its own")
        roles[name] = PeerRole.OPERATOR if name in operators else PeerRole.MEMBER
    try:
        directory.mkdir(parents=True, exist_ok=True)
        authority, key = _authority(directory, valid_days)
        made = []
        for name, role in roles.items():
            path = directory / f"{name}.pem"
            is_new = not (path.exists() and path.with_suffix(".key").exists())
            if is_new:
                _issue(path, name, role, authority, key, hosts=hosts, valid_days=valid_days)
            made.append(Certificate(name, role, path, is_new))
    except OSError as error:
        raise CertificateError(
            f"{error.filename or directory}: cannot be written: {error.strerror or error}"
        ) from error
    return made


def role_of(subject: object) -> tuple[PeerRole, str] | None:
    """Reads role and name from a peer's certificate as :meth:`ssl.SSLSocket.getpeercert` gives its subject."""
    parts = subject if isinstance(subject, tuple) else ()
    fields = dict(pair for part in parts for pair in part)
    try:
        return PeerRole(fields["organizationalUnitName"]), fields["commonName"]
    except (KeyError, ValueError):
        return None


def _authority(directory: Path, valid_days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_path, key_path = directory / f"{AUTHORITY}.pem", directory / f"{AUTHORITY}.key"
    if certificate_path.exists() != key_path.exists():
        present = certificate_path if certificate_path.exists() else key_path
        missing = key_path if present == certificate_path else certificate_path
        raise CertificateError(
            f"{missing} is missing while {present} is there; put it back, or use an empty directory"
        )
    if certificate_path.exists():
        try:
            certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
            key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        except ValueError as error:
            raise CertificateError(f"{certificate_path} and {key_path} cannot be read: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CertificateError(f"{key_path} is no elliptic-curve key; use an empty directory")
        return certificate, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "farstep run authority")])
    builder = _builder(name, name, key.public_key(), valid_days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates
    certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    _write_key(key_path, key)
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def _issue(
    path: Path,
    name: str,
    role: PeerRole,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    *,
    hosts: tuple[str, ...],
    valid_days: int,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role.value),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    builder = _builder(subject, authority.subject, key.public_key(), valid_days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    alternatives: list[x509.GeneralName] = [x509.DNSName(name)]
    if role is PeerRole.COORDINATOR:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        alternatives = [
            x509.DNSName(COORDINATOR_NAME),
            *map(_general_name, ("localhost", "127.0.0.1", *hosts)),
        ]
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    certificate = builder.sign(authority_key, hashes.SHA256())
    _write_key(path.with_suffix(".key"), key)
    if role is PeerRole.OPERATOR:
        bundle = pkcs12.serialize_key_and_certificates(
            name.encode(), key, certificate, [authority], serialization.NoEncryption()
        )
        _write_private(path.with_suffix(".p12"), bundle)
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid_days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=valid_days))
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9*]([A-Za-z0-9.-]{0,252})", host):
            raise CertificateError(f"{host!r} is neither a host name nor an address") from None
        return x509.DNSName(host)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_private(path, pem)


def _write_private(path: Path, content: bytes) -> None:
    """Writes a file that nobody but its owner could ever read, not even for a moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
