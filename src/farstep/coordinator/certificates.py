"""Makes the certificates of a run: one authority, and one certificate for each participant.

A participant's role stands in its certificate, signed by the authority: a member can take part in training but
not command it, an operator can command but not take part. A member takes part under the name in its certificate
alone, or, if that ends with `*`, under any name that begins like it. Keys are written readable by their owner alone.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import secrets
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from farstep.membership.records import NAME_PATTERN
from farstep.membership.tls import COORDINATOR_NAME, file_stem

__all__ = [
    "Certificate",
    "CertificateError",
    "ListedCertificate",
    "PeerRole",
    "covers",
    "list_certificates",
    "make_certificates",
    "role_of",
]

VALID_DAYS = 397
"""Browsers refuse certificates that are valid for longer."""

CLOCK_SKEW = datetime.timedelta(hours=1)
"""Certificates count from so long ago, since clocks of sites differ."""

AUTHORITY = "ca"

AGENT_SUFFIX = ".agent"
"""The observer that stands beside a replica group (`farstep join`) has its name and this."""

NAME = re.compile(NAME_PATTERN)
ANY_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,62})?\*")
"""Every name with this beginning; a certificate for replica groups whose names are not known beforehand."""


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
    valid_until: datetime.datetime


class ListedCertificate(NamedTuple):
    """One that lies in a directory.

    Attributes:
        path: its file.
        name: of its holder.
        role: what it lets its holder do.
        valid_until: when it expires.
        fingerprint: SHA-256 of it, in hexadecimal.
        is_ours: whether the authority of the directory has issued it.
        has_key: whether its private key lies beside it.
    """

    path: Path
    name: str
    role: str
    valid_until: datetime.datetime
    fingerprint: str
    is_ours: bool
    has_key: bool


def make_certificates(
    directory: Path,
    names: list[str],
    *,
    operators: tuple[str, ...] = ("operator",),
    hosts: tuple[str, ...] = (),
    valid_days: int = VALID_DAYS,
    is_renewal: bool = False,
    with_coordinator: bool = True,
) -> list[Certificate]:
    """Makes the authority, the coordinator's, the members' and the operators' certificates that are missing.

    Writes `ca.pem`, `ca.key`, and for every name `NAME.pem` and `NAME.key`; operators also get `NAME.p12` without
    a password, for a browser. What is there stays, unless it has expired or lacks a host. `ca.key` is needed to
    make further ones and nowhere else.

    Args:
        directory: where they go; made if missing.
        names: replica groups. One that ends with `*` is for all names that begin
            like it; its files have an `@` in place of the star.
        operators: people or tools that may drain, evict and override.
        hosts: names and addresses under which browsers reach coordinators; members do not look at them.
        valid_days: lifetime in days; nothing outlives the authority.
        is_renewal: make all that are named anew, with new keys. The authority stays.
        with_coordinator: make the coordinator's too, unless it is there.

    Raises:
        CertificateError: a name cannot be used or has another role, the authority has expired or is broken, or
            the directory cannot be written.
    """
    if not 1 <= valid_days <= 3650:
        raise CertificateError(f"valid_days is {valid_days}; valid: 1 to 3650")
    is_coordinator_named = with_coordinator or "coordinator" in names
    names = [name for name in names if name != "coordinator"]  # its role is not that of the others
    roles = dict.fromkeys(["coordinator"] if is_coordinator_named else [], PeerRole.COORDINATOR)
    for name in (*names, *operators):
        is_any = name in names and ANY_NAME.fullmatch(name)
        if not (NAME.fullmatch(name) or is_any) or name in (AUTHORITY, "coordinator"):
            raise CertificateError(
                f"{name!r} cannot be the name of a certificate; valid: letters, digits, '.', '_' and '-', for members "
                "also with a '*' at the end; not 'ca', and of operators not 'coordinator'"
            )
        if name in names and name in operators:
            raise CertificateError(f"{name!r} is both a member and an operator; each needs a name of its own")
        roles[name] = PeerRole.OPERATOR if name in operators else PeerRole.MEMBER
    try:
        directory.mkdir(parents=True, exist_ok=True)
        authority, key = _authority(directory, valid_days)
        made = []
        for name, role in roles.items():
            path = directory / f"{file_stem(name)}.pem"
            wanted = hosts if role is PeerRole.COORDINATOR else ()
            certificate = None if is_renewal else _usable(path, name, role, wanted)
            if certificate is not None:
                made.append(Certificate(name, role, path, False, certificate.not_valid_after_utc))
                continue
            certificate = _issue(path, name, role, authority, key, hosts=wanted, valid_days=valid_days)
            made.append(Certificate(name, role, path, True, certificate.not_valid_after_utc))
    except OSError as error:
        raise CertificateError(
            f"{error.filename or directory}: cannot be written: {error.strerror or error}"
        ) from error
    return made


def list_certificates(directory: Path) -> list[ListedCertificate]:
    """Returns what is in a directory of certificates, the authority first.

    Raises:
        CertificateError: there is no authority, or a file is no certificate.
    """
    authority_path = directory / f"{AUTHORITY}.pem"
    if not authority_path.is_file():
        raise CertificateError(
            f"{authority_path} is missing; `farstep certs init {directory}` makes an authority"
        )
    authority = _read(authority_path)
    found = []
    for path in sorted(directory.glob("*.pem"), key=lambda path: (path != authority_path, path.name)):
        certificate = _read(path)
        try:
            certificate.verify_directly_issued_by(authority)
            is_ours = True
        except (ValueError, TypeError, InvalidSignature):
            is_ours = False
        found.append(
            ListedCertificate(
                path,
                _field(certificate, NameOID.COMMON_NAME),
                _field(certificate, NameOID.ORGANIZATIONAL_UNIT_NAME) or "authority",
                certificate.not_valid_after_utc,
                certificate.fingerprint(hashes.SHA256()).hex(),
                is_ours,
                path.with_suffix(".key").is_file(),
            )
        )
    return found


def _field(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    found = certificate.subject.get_attributes_for_oid(oid)
    return str(found[0].value) if found else ""


def _usable(path: Path, name: str, role: PeerRole, hosts: tuple[str, ...]) -> x509.Certificate | None:
    """Returns a participant's certificate if it is there, has not expired and names the hosts."""
    if not (path.exists() and path.with_suffix(".key").exists()):
        return None
    certificate = _read(path)
    unit = _field(certificate, NameOID.ORGANIZATIONAL_UNIT_NAME)
    if unit and unit != role:
        raise CertificateError(
            f"{path} is a certificate of the {unit} {name}; give the {role} another name, "
            "or move its files away"
        )
    if certificate.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
        return None
    if hosts:
        try:
            named = list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        except x509.ExtensionNotFound:
            return None
        if any(_general_name(host) not in named for host in hosts):
            return None
    return certificate


def _read(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise CertificateError(f"{path} is no certificate in PEM form: {error}") from error


def role_of(subject: object) -> tuple[PeerRole, str] | None:
    """Reads role and name from a peer's certificate as :meth:`ssl.SSLSocket.getpeercert` gives its subject."""
    parts = subject if isinstance(subject, tuple) else ()
    fields = dict(pair for part in parts for pair in part)
    try:
        return PeerRole(fields["organizationalUnitName"]), fields["commonName"]
    except (KeyError, ValueError):
        return None


def covers(certified: str, name: str, *, is_observer: bool) -> bool:
    """Whether a member may take part under a name with the certificate of another, or the same.

    Args:
        certified: name in its certificate.
        name: under which it wants to take part.
        is_observer: it wants no seat; the agent beside a replica group has that one's certificate.
    """
    if certified.endswith("*"):
        return name.startswith(certified[:-1])
    return name == certified or (is_observer and name == certified + AGENT_SUFFIX)


def _authority(directory: Path, valid_days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_path, key_path = directory / f"{AUTHORITY}.pem", directory / f"{AUTHORITY}.key"
    if certificate_path.exists() != key_path.exists():
        present = certificate_path if certificate_path.exists() else key_path
        missing = key_path if present == certificate_path else certificate_path
        raise CertificateError(
            f"{missing} is missing while {present} is there; put it back, or use an empty directory"
        )
    if certificate_path.exists():
        certificate = _read(certificate_path)
        try:
            key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise CertificateError(
                f"{key_path} cannot be read as a key without a password: {error}"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise CertificateError(f"{key_path} is not the key of {certificate_path}; use an empty directory")
        if certificate.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
            raise CertificateError(
                f"{certificate_path} has expired on {certificate.not_valid_after_utc:%Y-%m-%d}; "
                "make a new authority in an empty directory"
            )
        return certificate, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "farstep run authority")])
    builder = _builder(name, name, key.public_key(), key.public_key(), _expiry(valid_days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates
    certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    _write_key(key_path, key)
    _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
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
) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role.value),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    until = min(_expiry(valid_days), authority.not_valid_after_utc)
    builder = _builder(subject, authority.subject, key.public_key(), authority_key.public_key(), until)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    # Of no host: members accept each other's control channels, and must not pass for a coordinator or a web server.
    alternatives: list[x509.GeneralName] = [x509.DNSName(f"{role}.farstep.invalid")]
    if role is not PeerRole.OPERATOR:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    if role is PeerRole.COORDINATOR:
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
        _write(path.with_suffix(".p12"), bundle, 0o600)
    _write(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return certificate


def _expiry(valid_days: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=valid_days)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    valid_until: datetime.datetime,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(valid_until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(signer, critical=False)
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
    _write(path, pem, 0o600)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replaces a file as a whole; nobody without the right could ever read it, not even for a moment."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
