"""Mutual TLS between members, operators and coordinators: three files, two contexts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

__all__ = ["COORDINATOR_NAME", "TlsFiles"]

COORDINATOR_NAME = "farstep-coordinator"
"""Every coordinator's certificate carries this name, so that it may run at any address."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificates of one participant are.

    Attributes:
        authority: certificate of the run's own authority (PEM); whoever it has signed may take part.
        certificate: certificate of this participant (PEM).
        key: its private key (PEM).
    """

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def in_directory(cls, directory: str | Path, name: str) -> TlsFiles:
        """Names the files `ca.pem`, `NAME.pem` and `NAME.key` of a directory.

        Raises:
            FileNotFoundError: one of them is missing.
        """
        root = Path(directory)
        files = cls(root / "ca.pem", root / f"{name}.pem", root / f"{name}.key")
        for path in (files.authority, files.certificate, files.key):
            if not path.is_file():
                raise FileNotFoundError(
                    f"{path} is missing; `farstep certificates {root} --name {name}` makes it"
                )
        return files

    def client_context(self) -> ssl.SSLContext:
        """Returns the context of one who connects; the peer must be a coordinator of this authority."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key)
        return context

    def server_context(self) -> ssl.SSLContext:
        """Returns the context of a coordinator; nobody gets in without a certificate of this authority."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key)
        context.verify_mode = ssl.CERT_REQUIRED
        return context
