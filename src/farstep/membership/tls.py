"""Mutual TLS between members, operators and coordinators: three files, two contexts."""

from __future__ import annotations

import contextlib
import datetime
import logging
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["COORDINATOR_NAME", "TlsError", "TlsFiles", "Trouble", "file_stem", "trouble_of"]

COORDINATOR_NAME = "farstep-coordinator"
"""Every coordinator's certificate carries this name, so that it may run at any address."""


_log = logging.getLogger(__name__)

ANY_SUFFIX = "@"
"""Ends the file names of a certificate for all names with a common beginning: that for `a-*` is in `a-@.pem`."""


def file_stem(name: str) -> str:
    """Returns the name of a certificate's files, without their endings."""
    return f"{name[:-1]}{ANY_SUFFIX}" if name.endswith("*") else name


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why certificates kept two sides apart.

    Attributes:
        cause: what happened, in words that follow an address.
        remedy: what helps.
        wants_folder: whether it would help to name a folder of certificates.
    """

    cause: str
    remedy: str
    wants_folder: bool = False


def trouble_of(error: BaseException, *, has_certificates: bool) -> Trouble | None:
    """Tells from an error of a connection, and from what it came of, how certificates are to blame.

    Args:
        error: as the library raised it.
        has_certificates: whether this side has some.

    Returns:
        None if they are not known to be.
    """
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        seen.append(link)
        link = link.__cause__ or link.__context__
    text = " ".join(str(part) for part in seen).replace("_", " ")
    upper = text.upper()
    if "WRONG VERSION NUMBER" in upper or "RECORD LAYER FAILURE" in upper:
        remedy = "a coordinator that was started with --insecure is asked without certificates"
        return Trouble("it does not speak TLS", remedy)
    if "EXPIRED" in upper:
        remedy = "farstep certificates DIR --renew, then restart the coordinator"
        return Trouble("a certificate has expired", remedy)
    same = "both sides need certificates of one authority (the same ca.pem)"
    if "UNKNOWN CA" in upper or "CERTIFICATE VERIFY FAILED" in upper:
        reason = text.partition("verify failed: ")[2].partition(" (")[0]
        return Trouble(f"certificates do not fit together{f': {reason}' if reason else ''}", same)
    if any(isinstance(part, EOFError | ConnectionResetError) for part in seen):
        # In TLS 1.3 a server judges a certificate when the client takes the handshake for done already.
        if has_certificates:
            return Trouble("it closed the connection", same)
        remedy = "a coordinator that was started with --tls wants a certificate"
        return Trouble("it closed the connection", remedy, wants_folder=True)
    return None


class TlsError(OSError):
    """A certificate or key cannot be used; the message names its file and says why, in one line."""


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
    def in_directory(cls, directory: str | Path, name: str, *, option: str = "--name") -> TlsFiles:
        """Names the files `ca.pem`, `NAME.pem` and `NAME.key` of a directory.

        If there is no certificate for the name itself, the one with the longest beginning of it is taken.

        Args:
            directory: folder of certificates.
            name: of the participant.
            option: how `farstep certificates` is told such a name.

        Raises:
            FileNotFoundError: one of them is missing.
            TlsError: one of them cannot be read or used, or has expired.
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
                more = "" if name == "coordinator" else f" {option} {name}"  # that one is always made
                raise FileNotFoundError(f"{path} is missing; `farstep certificates {root}{more}` makes it")
        files.client_context()
        files._check_dates()
        mode = stat.S_IMODE(files.key.stat().st_mode)
        if mode & 0o044:
            _log.warning("%s can be read by others (mode %03o): chmod 600 it", files.key, mode)
        return files

    def client_context(self) -> ssl.SSLContext:
        """Returns the context of one who connects; the peer must be a coordinator of this authority."""
        return self._context(ssl.Purpose.SERVER_AUTH)

    def server_context(self, on_refused: Callable[[str], None] | None = None) -> ssl.SSLContext:
        """Returns the context of a coordinator; nobody gets in without a certificate of this authority.

        Args:
            on_refused: called with the reason when a handshake fails, on the thread it fails on.
        """
        context = self._context(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_REQUIRED
        if on_refused is not None:
            tell = on_refused

            class Telling(ssl.SSLObject):
                def do_handshake(self) -> None:
                    try:
                        super().do_handshake()
                    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                        raise
                    except ssl.SSLError as error:
                        tell(_refusal(error))
                        raise

            context.sslobject_class = Telling
        return context

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        for path, mark in (
            (self.authority, "CERTIFICATE-----"),
            (self.certificate, "CERTIFICATE-----"),
            (self.key, "PRIVATE KEY-----"),
        ):
            _check_content(path, mark)
        try:
            context = ssl.create_default_context(purpose, cafile=str(self.authority))
        except ssl.SSLError as error:
            raise TlsError(f"{self.authority} cannot be used: {_reason(error)}") from error
        try:
            # Never asks at the terminal: a key with a password cannot be used.
            context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise TlsError(f"{self.certificate} cannot be used: {self.key} is not its key") from error
            raise TlsError(f"{self.certificate} or {self.key} cannot be used: {_reason(error)}") from error
        return context

    def _check_dates(self) -> None:
        with contextlib.suppress(ModuleNotFoundError):  # then the other side says it
            from cryptography import x509

            folder = self.certificate.parent
            for path, remedy in (
                (self.authority, "make a new authority in an empty folder: farstep certificates DIR"),
                (
                    self.certificate,
                    f"farstep certificates {folder} --renew, with the --name and --operator of all it is for",
                ),
            ):
                try:
                    until = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
                except ValueError as error:
                    raise TlsError(f"{path} cannot be used: {error}") from error
                if until <= datetime.datetime.now(datetime.UTC):
                    raise TlsError(f"{path} has expired on {until:%Y-%m-%d}; {remedy}")


def _check_content(path: Path, mark: str) -> None:
    """Says of a file what the TLS library would not: which it is, and that it is empty or something else."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path} cannot be read: {error.strerror or error}") from error
    if not content.strip():
        raise TlsError(f"{path} cannot be used: it is empty")
    if mark.encode() not in content:
        kind = "private key" if "KEY" in mark else "certificate"
        raise TlsError(f"{path} cannot be used: it is no {kind} in PEM form")


def _refusal(error: ssl.SSLError) -> str:
    """Says in the words of a server why it took a client's handshake for nothing."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this authority, or not valid now: {error.verify_message}"
    match error.reason:
        case "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "it has no certificate"
        case "HTTP_REQUEST" | "WRONG_VERSION_NUMBER" | "UNSUPPORTED_PROTOCOL":
            return "it does not speak TLS, or a version that is too old"
        case _:
            return _reason(error)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or error.strerror or str(error)).replace("_", " ").lower()
