"""How the packets of an endpoint are protected: what it asks for, who it is, and what two ends agree on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from farstep import _native
from farstep.engine.errors import SecurityError
from farstep.mrc.errors import InvalidFieldError

__all__ = ["Identity", "Protection", "SecurityOffer", "SecurityProfile", "agree"]

KEY_BITS = (128, 256)


class Protection(StrEnum):
    """What happens to the packets of a connection, from the weakest to the strongest.

    OFF: nothing; for fabrics where nobody else can send or listen.
    AUTHENTICATE: forged, changed and repeated packets are dropped; whoever listens can read the data.
    ENCRYPT: and whoever listens cannot. Headers stay readable.
    """

    OFF = "off"
    AUTHENTICATE = "authenticate"
    ENCRYPT = "encrypt"

    @property
    def strength(self) -> int:
        """Place in the order."""
        return list(Protection).index(self)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who an endpoint is: a certificate with its key, and the authority whose certificates it takes from peers.

    Attributes:
        authority: certificate of the authority (PEM).
        certificate: certificate of this endpoint, issued by it (PEM).
        key: its private key without a password (PEM).
    """

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def in_directory(cls, directory: str | Path, name: str) -> Identity:
        """Names the files that `farstep certs issue` makes: `ca.pem`, `NAME.pem` and `NAME.key`.

        Raises:
            SecurityError: one of them is missing.
        """
        root = Path(directory)
        found = cls(root / "ca.pem", root / f"{name}.pem", root / f"{name}.key")
        for path in (found.authority, found.certificate, found.key):
            if not path.is_file():
                raise SecurityError(f"{path} is missing; `farstep certs issue {root} {name}` makes it")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityProfile:
    """What an endpoint asks of its connections. The stronger wish of the two ends counts, never the weaker.

    Attributes:
        identity: who this endpoint is. With one, every peer must show a certificate of the same authority, whatever
            the protection; without one, connections cannot be protected.
        within_site: least protection between endpoints of one site.
        between_sites: least protection between sites. Ends that are both on this machine and have no identity need
            none, unless it is set to AUTHENTICATE.
        key_bits: size of the AES key, 128 or 256; the larger wish counts.
    """

    identity: Identity | None = None
    within_site: Protection = Protection.OFF
    between_sites: Protection = Protection.ENCRYPT
    key_bits: int = 128

    def __post_init__(self) -> None:
        for name in ("within_site", "between_sites"):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, Protection(value))
            except ValueError:
                raise InvalidFieldError(name, value, "one of " + ", ".join(map(repr, _NAMES))) from None
        if self.key_bits not in KEY_BITS:
            raise InvalidFieldError("key_bits", self.key_bits, "128 or 256")
        if self.identity is not None and not isinstance(self.identity, Identity):
            raise InvalidFieldError("identity", self.identity, "an Identity, or None")
        if self.within_site is not Protection.OFF and self.identity is None:
            raise InvalidFieldError("within_site", str(self.within_site), "'off' where there is no identity")


_NAMES = [str(p) for p in Protection]


@dataclass(frozen=True, slots=True)
class SecurityOffer:
    """What a descriptor says of security.

    Attributes:
        within_site: least protection within its site.
        between_sites: least protection toward other sites.
        key_bits: least size of the key.
        public_key: X25519 key of this connection, in hexadecimal; empty where there is no identity.
        certificate: certificate (PEM) whose key has signed the descriptor; empty where there is no identity.
    """

    within_site: str
    between_sites: str
    key_bits: int
    public_key: str = ""
    certificate: str = ""

    def check(self) -> None:
        """Raises ValueError naming the first field that is out of range."""
        for name in ("within_site", "between_sites"):
            if getattr(self, name) not in _NAMES:
                raise ValueError(
                    f"security.{name} = {getattr(self, name)!r} is not one of {', '.join(_NAMES)}"
                )
        if self.key_bits not in KEY_BITS:
            raise ValueError(f"security.key_bits = {self.key_bits!r} is neither 128 nor 256")
        for name in ("public_key", "certificate"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"security.{name} is not a text")
        if bool(self.public_key) != bool(self.certificate):
            raise ValueError("security has a public key without a certificate, or the reverse")


NO_OFFER = SecurityOffer(Protection.OFF, Protection.ENCRYPT, 128)
"""What an endpoint offers that says nothing of security: that of :class:`SecurityProfile` without an identity."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What both ends find that their connection needs."""

    protection: Protection
    key_bits: int


def agree(own: SecurityOffer, peer: SecurityOffer, *, is_same_site: bool, is_local: bool) -> Agreement:
    """Returns what a connection between two ends needs; both come to the same answer.

    Args:
        own: what this end offers.
        peer: what the other end offers.
        is_same_site: both are at one site.
        is_local: all addresses of both are loopback addresses.

    Raises:
        SecurityError: one end asks for what the other cannot do.
    """
    mine = _wish(own, is_same_site=is_same_site, is_local=is_local)
    theirs = _wish(peer, is_same_site=is_same_site, is_local=is_local)
    protection = max(mine, theirs, key=lambda p: p.strength)
    if own.certificate and not peer.certificate:
        raise SecurityError(
            "this endpoint has a certificate and the peer shows none; give both an identity of the same authority"
        )
    if peer.certificate and not own.certificate:
        raise SecurityError(
            "the peer has a certificate and this endpoint none; give both an identity of the same authority"
        )
    if protection is not Protection.OFF:
        if not own.certificate:
            who = "the peer is" if theirs is not Protection.OFF and mine is Protection.OFF else "it is"
            raise SecurityError(
                f"{who} to be protected (mode {protection}) and neither end has a certificate; give both an identity "
                "(`farstep certs`), or set between_sites='off' at both on a network you trust"
            )
        if why := _native.why_no_libcrypto():
            raise SecurityError(f"mode {protection} is asked for, and {why}")
    return Agreement(protection, max(own.key_bits, peer.key_bits))


def _wish(offer: SecurityOffer, *, is_same_site: bool, is_local: bool) -> Protection:
    if is_same_site:
        return Protection(offer.within_site)
    if is_local and offer == NO_OFFER:
        return Protection.OFF
    return Protection(offer.between_sites)
