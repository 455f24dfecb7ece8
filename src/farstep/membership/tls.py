"""Mutual TLS between members, operators and coordinators: three files, two contexts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

__all__ = ["COORDINATOR_NAME", "TlsFiles", "file_stem"]

COORDINATOR_NAME = "farstep-coordinator"
"""Every coordinator's certificate carries this name, so that it may run at any address."""


ANY_SUFFIX = "@"
"""Ends the file names of a certificate for all names with a common beginning: that for `a-*` is in `a-@.pem`."""


def file_stem(name: str) -> str:
    """Returns the name of a certificate's files, without their endings."""
    return f"{name[:-1]}{ANY_SUFFIX}" if name.endswith("*") else name


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

        If there is no certificate for the name itself, the one with the longest beginning of it is taken.

        Raises:
            FileNotFoundError: one of them is missing.
        """
        root = Path(directory)
        stem = file_stem(name)
        if not (root / f"{stem}.pem").exists():
            found = (path.stem for path in root.glob(f"*{ANY_SUFFIX}.pem"))
            fitting = [any_name for any_name in found if name.startswith(any_name[: -len(ANY_SUFFIX)])]
            stem = max(fitting, key=len, default=stem)
        files = cls(root / "ca.pem", root / f"{stem}.pem", root / f"{stem}.key")
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
