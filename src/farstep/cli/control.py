"""How operators' commands reach a coordinator: its address, certificates, and errors in words."""

import datetime
import json
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from farstep.cli.errors import REMOTE, USAGE, CommandError

if TYPE_CHECKING:
    import httpx

    from farstep.membership.tls import TlsFiles

__all__ = ["Address", "As", "Control", "Tls", "expiries", "given_address", "tls_files"]

Address = Annotated[
    str | None,
    typer.Option(
        "--coordinator", metavar="URL", help="host:port, URL or file:FILE; default $FARSTEP_COORDINATOR."
    ),
]
Tls = Annotated[Path | None, typer.Option("--tls", metavar="DIR", help="Certificates; default $FARSTEP_TLS.")]
As = Annotated[str, typer.Option("--as", metavar="NAME", help="Whose certificate of that folder.")]

TIMEOUT_S = 5.0


def given_address(address: str | None) -> str:
    """Returns the coordinator's address of the command line or of the environment.

    Raises:
        CommandError: there is none.
    """
    address = address or os.environ.get("FARSTEP_COORDINATOR")
    if not address:
        raise CommandError(
            "no coordinator is named",
            status=USAGE,
            hint="--coordinator HOST:PORT, or set FARSTEP_COORDINATOR",
        )
    return address


def tls_files(directory: Path | None, name: str, *, option: str = "--name") -> "TlsFiles | None":
    """Returns the certificate files of a participant; None if neither command line nor environment name a folder.

    Raises:
        CommandError: they are missing, have expired or cannot be used.
    """
    from farstep.membership.tls import TlsError, TlsFiles

    given = os.environ.get("FARSTEP_TLS")
    directory = directory or (Path(given) if given else None)
    if directory is None:
        return None
    try:
        return TlsFiles.in_directory(directory, name, option=option)
    except (FileNotFoundError, TlsError) as error:
        message, _, hint = str(error).partition("; ")
        raise CommandError(message, status=USAGE, hint=hint) from error


def expiries(files: "TlsFiles") -> list[tuple[Path, datetime.datetime, str]]:
    """Returns the certificates among these files, when each expires, and what to do then."""
    from cryptography import x509

    folder = files.certificate.parent
    hints = {
        files.authority: "make a new authority in an empty folder: farstep certificates DIR",
        files.certificate: f"farstep certificates {folder} --renew, with the --name and --operator of all it is for",
    }
    return [
        (path, x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc, hint)
        for path, hint in hints.items()
    ]


class Control:
    """Asks a coordinator, the first that answers of those that are named.

    Args:
        address: `host:port`, a `ws://` or `http://` URL, or `file:FILE`; several separated by commas.
        tls: folder of certificates.
        name: whose certificate.

    Raises:
        CommandError: no address, or certificates are missing.
    """

    def __init__(self, address: str | None, tls: Path | None, name: str) -> None:
        from farstep.membership.addresses import AddressBook, AddressError
        from farstep.membership.tls import COORDINATOR_NAME

        # What every coordinator's certificate says, wherever it runs.
        self._extensions = {"sni_hostname": COORDINATOR_NAME}
        files = tls_files(tls, name, option="--operator")
        self._context = files.client_context() if files is not None else None
        try:
            self._book = AddressBook(given_address(address), is_secure=files is not None)
        except AddressError as error:
            raise CommandError(str(error), status=USAGE) from error
        self._base: str | None = None

    def get(self, path: str, **parameters: Any) -> Any:
        """Returns the answer to a GET."""
        return self._json(self._ask("GET", path, params=parameters))

    def send(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """Returns the answer to a command."""
        return self._json(self._ask(method, path, json=body))

    def command(self, group: str, verb: str, body: dict[str, Any]) -> Any:
        """Returns the answer to a command on one replica group."""
        return self.send("POST", f"/v1/members/{quote(group, safe='')}/{verb}", body)

    def follow(self, path: str, last_event_id: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields id and content of server-sent events until the coordinator goes away.

        Args:
            path: of the stream.
            last_event_id: of the last event before; another coordinator begins with its oldest.
        """
        import httpx

        self._ask("GET", "/v1/members")  # finds out who answers, and raises if nobody does
        headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
        event_id = last_event_id or ""
        try:
            with (
                self._client(httpx.Timeout(TIMEOUT_S, read=30.0)) as client,
                client.stream(
                    "GET", f"{self._base}{path}", headers=headers, extensions=self._extensions
                ) as answer,
            ):
                self._check(answer)
                for line in answer.iter_lines():
                    if line.startswith("id: "):
                        event_id = line[4:]
                    elif line.startswith("data: "):
                        yield event_id, json.loads(line[6:])
        except (httpx.HTTPError, ssl.SSLError):
            pass
        self._base = None

    def _client(self, timeout: Any) -> "httpx.Client":
        import httpx

        # Without certificates there is nothing to verify; proxies would see what is meant for the coordinator.
        return httpx.Client(verify=self._context or False, timeout=timeout, trust_env=False)

    def _ask(self, method: str, path: str, **more: Any) -> "httpx.Response":
        import httpx

        causes: list[str] = []
        hint = "the run goes on without one; start it with farstep coordinator"
        for base in [self._base] if self._base else self._bases(causes):
            try:
                with self._client(TIMEOUT_S) as client:
                    answer = client.request(method, f"{base}{path}", extensions=self._extensions, **more)
            except (httpx.HTTPError, ssl.SSLError) as error:
                cause, better_hint = _in_words(error, has_certificates=self._context is not None)
                causes.append(f"{base}: {cause}")
                hint = better_hint or hint
                continue
            self._check(answer)
            self._base = base
            return answer
        self._base = None
        what = "; ".join(dict.fromkeys(causes)) or f"{self._book} names no address now"
        raise CommandError(f"no coordinator answers ({what})", status=REMOTE, hint=hint)

    def _bases(self, causes: list[str]) -> list[str]:
        """Returns where to ask, and notes which addresses cannot be asked with what there is."""
        bases = []
        for url in self._book.urls():
            parts = urlsplit(url)
            is_secure = parts.scheme == "wss"
            base = f"{'https' if is_secure else 'http'}://{parts.netloc}"
            if is_secure and self._context is None:
                causes.append(
                    f"{base}: it wants a certificate, and none is named; --tls DIR names the folder"
                )
            elif not is_secure and self._context is not None:
                causes.append(f"{base}: it has no certificate, and --tls asks for one")
            else:
                bases.append(base)
        return bases

    @staticmethod
    def _json(answer: "httpx.Response") -> Any:
        try:
            return answer.json()
        except ValueError as error:
            raise CommandError(
                f"{answer.url.netloc.decode()} answers, but is no farstep coordinator", status=REMOTE
            ) from error

    @staticmethod
    def _check(answer: "httpx.Response") -> None:
        if answer.is_success:
            return
        answer.read()
        detail: Any = None
        try:
            detail = answer.json()["detail"]
        except (ValueError, KeyError, TypeError):
            where = answer.url.netloc.decode()
            detail = f"{where} answers HTTP {answer.status_code}; is it a farstep coordinator?"
        if isinstance(detail, list):
            detail = "; ".join(f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in detail)
        raise CommandError(str(detail), status=USAGE if answer.status_code in (409, 422) else REMOTE)


def _in_words(error: Exception, *, has_certificates: bool) -> tuple[str, str]:
    """Says what went wrong on the way to a coordinator, and what helps against it ("" if nothing special does)."""
    import httpx

    from farstep.membership.tls import trouble_of

    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {TIMEOUT_S:g} s", ""
    if isinstance(error, httpx.RemoteProtocolError):
        error = EOFError()  # it hung up in the middle, which says nothing but that
    trouble = trouble_of(error, has_certificates=has_certificates)
    if trouble is None:
        return str(error) or type(error).__name__, ""
    return trouble.cause, trouble.remedy + (": --tls DIR" if trouble.wants_folder else "")
