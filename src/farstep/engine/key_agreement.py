"""Who is at the other end, and the secrets of a connection: signed descriptors and what follows from two of them.

Every connection has an X25519 key of its own. The public half is in its descriptor, which is signed with the key of the
endpoint's certificate. Whatever carries descriptors, such as a store that others can read, sees no secret, and who
changes one is found out: by the signature, and because the secrets follow from both descriptors as each end has them.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import functools
import hashlib
import hmac
import importlib.util
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farstep.engine.errors import SecurityError
from farstep.engine.security import Agreement, Identity, SecurityOffer, SecurityProfile

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

__all__ = [
    "EphemeralKey",
    "TrafficSecrets",
    "check_expected",
    "check_identity",
    "covers",
    "name_of_peer",
    "offer_of",
    "sign",
    "verify",
]

_SIGNED = b"farstep connection descriptor 2\0"
_SECRET_BYTES = 32
_ROLES_REFUSED = frozenset({"operator", "coordinator"})
"""Roles in a certificate of `farstep certs` that command a run and do not take part in it."""


@dataclass(frozen=True, slots=True)
class TrafficSecrets:
    """What the keys of both directions follow from, 32 bytes each."""

    sending: bytes = field(repr=False)
    receiving: bytes = field(repr=False)


class EphemeralKey:
    """The key of one connection. It is used once and then forgotten, so that nobody can find it later."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private: X25519PrivateKey | None = X25519PrivateKey.generate()
        raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        self.public = self._private.public_key().public_bytes(*raw).hex()

    def secrets(
        self, own: bytes, peer: bytes, peer_public: str, agreement: Agreement, *, channel_secret: bytes = b""
    ) -> TrafficSecrets:
        """Returns the secrets of both directions.

        Args:
            own: descriptor of this end, as it was signed.
            peer: descriptor of the other end, as it was signed.
            peer_public: the peer's public key, from its descriptor.
            agreement: mode and size of the key, which become part of what the secrets follow from.
            channel_secret: what both ends have told each other over an encrypted channel, if there was one.

        Raises:
            SecurityError: the key was used before, or the peer's is none.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        private, self._private = self._private, None
        if private is None:
            raise SecurityError("the key of this connection has been used")
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(peer_public)))
        except ValueError:
            raise SecurityError("the peer's descriptor has no X25519 key that can be used") from None
        first, second = sorted((own, peer))
        both = b"".join(struct.pack(">I", len(part)) + part for part in (first, second))
        salt = hashlib.sha256(b"farstep keys 1\0" + both).digest()
        extracted = hmac.digest(salt, shared + channel_secret, "sha256")

        def expand(sender: bytes) -> bytes:
            info = f"farstep traffic {agreement.protection} {agreement.key_bits} ".encode()
            return hmac.digest(extracted, info + hashlib.sha256(sender).digest() + b"\1", "sha256")

        return TrafficSecrets(expand(own), expand(peer))


def check_identity(identity: Identity) -> None:
    """Raises SecurityError where the files of an identity cannot be used, or the package for it is missing."""
    _own(identity)


def offer_of(profile: SecurityProfile, key: EphemeralKey | None) -> SecurityOffer:
    """Returns what a descriptor of an endpoint says of security."""
    certificate = "" if profile.identity is None else _own(profile.identity).certificate_pem
    return SecurityOffer(
        str(profile.within_site),
        str(profile.between_sites),
        profile.key_bits,
        key.public if key is not None else "",
        certificate,
    )


def sign(identity: Identity, body: bytes) -> bytes:
    """Returns the signature of a descriptor, in base64.

    Raises:
        SecurityError: the key cannot be used.
    """
    return base64.b64encode(_own(identity).sign(_SIGNED + body))


def verify(identity: Identity, body: bytes, signature: bytes, certificate_pem: str) -> str:
    """Checks who has signed a descriptor and returns the name in that certificate.

    Raises:
        SecurityError: the certificate is not one of our authority, has expired or is for something else; or the
            signature is not that of its key.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem.encode())
    except ValueError:
        raise SecurityError("the peer's descriptor has a certificate that cannot be read") from None
    name = _checked_name(identity, certificate)
    try:
        _check_signature(certificate.public_key(), base64.b64decode(signature, validate=True), _SIGNED + body)
    except (InvalidSignature, binascii.Error):
        raise SecurityError(
            f"the peer's descriptor was not signed by {name!r}, or was changed since"
        ) from None
    return name


def name_of_peer(identity: Identity, certificate_der: bytes, expected: str | None) -> str:
    """Checks the certificate of the other end of a TLS connection and returns the name in it.

    Raises:
        SecurityError: it is not one of our authority, has expired, is for something else or for somebody else.
    """
    from cryptography import x509

    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
    except ValueError:
        raise SecurityError("the peer shows no certificate that can be read") from None
    name = _checked_name(identity, certificate)
    check_expected(name, expected)
    return name


def check_expected(name: str, expected: str | None) -> None:
    """Raises SecurityError where the name in a certificate is not the one that is expected."""
    if expected is not None and not covers(name, expected):
        raise SecurityError(f"the peer shows the certificate of {name!r}, expected was that of {expected!r}")


def _checked_name(identity: Identity, certificate: x509.Certificate) -> str:
    from cryptography.exceptions import InvalidSignature

    own = _own(identity)
    name, role = _name_and_role(certificate)
    try:
        certificate.verify_directly_issued_by(own.authority)
    except (ValueError, TypeError, InvalidSignature):
        raise SecurityError(
            f"the peer's certificate, of {name!r}, is not one of {identity.authority}"
        ) from None
    now = datetime.datetime.now(datetime.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise SecurityError(
            f"the peer's certificate, of {name!r}, is valid from {certificate.not_valid_before_utc:%Y-%m-%d} to "
            f"{certificate.not_valid_after_utc:%Y-%m-%d}; today is {now:%Y-%m-%d}"
        )
    if role in _ROLES_REFUSED:
        raise SecurityError(
            f"the peer's certificate, of {name!r}, has the role {role}, which takes no part in a run"
        )
    return name


def covers(certified: str, name: str) -> bool:
    """Whether the holder of a certificate may be who is expected: the same name, or one that begins like `PREFIX*`.

    >>> covers("a-0", "a-0"), covers("a-*", "a-1"), covers("a-0", "a-1")
    (True, True, False)
    """
    return name.startswith(certified[:-1]) if certified.endswith("*") else name == certified


class _Own:
    """What the files of an identity hold."""

    def __init__(self, identity: Identity) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization

        self.authority = _read_certificate(identity.authority)
        certificate = _read_certificate(identity.certificate)
        self.certificate_pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        try:
            self._key: Any = serialization.load_pem_private_key(_read(identity.key), password=None)
        except (ValueError, TypeError) as error:
            raise SecurityError(f"{identity.key} is no private key without a password in PEM form") from error
        if self._key.public_key() != certificate.public_key():
            raise SecurityError(f"{identity.key} is not the key of {identity.certificate}")
        assert isinstance(certificate, x509.Certificate)

    def sign(self, data: bytes) -> bytes:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519

        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            return self._key.sign(data, ec.ECDSA(hashes.SHA256()))
        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            return self._key.sign(data)
        raise SecurityError(
            "descriptors are signed with keys of an elliptic curve or Ed25519; this one is another"
        )


def _check_signature(key: Any, signature: bytes, data: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    if isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    elif isinstance(key, ed25519.Ed25519PublicKey):
        key.verify(signature, data)
    else:
        raise InvalidSignature


def _name_and_role(certificate: x509.Certificate) -> tuple[str, str]:
    from cryptography.x509.oid import NameOID

    def field(oid: Any) -> str:
        found = certificate.subject.get_attributes_for_oid(oid)
        return str(found[0].value) if found else ""

    return field(NameOID.COMMON_NAME), field(NameOID.ORGANIZATIONAL_UNIT_NAME)


def _read_certificate(path: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise SecurityError(f"{path} is no certificate in PEM form") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(f"{path} cannot be read: {error.strerror or error}") from error


def _own(identity: Identity) -> _Own:
    try:
        stamps = tuple(p.stat().st_mtime_ns for p in (identity.authority, identity.certificate, identity.key))
    except OSError as error:
        raise SecurityError(f"{error.filename} cannot be read: {error.strerror or error}") from error
    return _loaded(identity, stamps)


@functools.lru_cache(maxsize=16)
def _loaded(identity: Identity, stamps: tuple[int, ...]) -> _Own:
    del stamps  # tell a renewed certificate from the one before
    if importlib.util.find_spec("cryptography") is None:
        raise SecurityError("an identity needs the package cryptography: pip install 'farstep[control]'")
    return _Own(identity)
