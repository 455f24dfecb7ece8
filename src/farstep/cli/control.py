"""How operators' commands reach a coordinator: its address, certificates, and errors in words."""

import json
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from farstep.cli.errors import REMOTE, USAGE, CommandError
from farstep.membership.tls import COORDINATOR_NAME

if TYPE_CHECKING:
    import httpx

__all__ = ["Address", "As", "Control", "Tls"]

Address = Annotated[
    str | None,
    typer.Option(
        "--coordinator", metavar="URL", help="host:port, URL or file:FILE; default $FARSTEP_COORDINATOR."
    ),
]
Tls = Annotated[Path | None, typer.Option("--tls", metavar="DIR", help="Certificates; default $FARSTEP_TLS.")]
As = Annotated[str, typer.Option("--as", metavar="NAME", help="Whose certificate of that folder.")]

TIMEOUT_S = 5.0

_NAME = {"sni_hostname": COORDINATOR_NAME}  # what every coordinator's certificate says, wherever it runs


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

        address = address or os.environ.get("FARSTEP_COORDINATOR")
        if not address:
            raise CommandError(
                "no coordinator is named",
                status=USAGE,
                hint="--coordinator HOST:PORT, or set FARSTEP_COORDINATOR",
            )
        given = os.environ.get("FARSTEP_TLS")
        directory = tls or (Path(given) if given else None)
        self._verify: ssl.SSLContext | bool = self._context(directory, name) if directory else False
        try:
            urls = AddressBook(address).urls()
        except AddressError as error:
            raise CommandError(str(error), status=USAGE) from error
        scheme = "https" if directory else "http"
        self._bases = [f"{scheme}://{urlsplit(url).netloc}" for url in urls]
        self._base: str | None = None

    @staticmethod
    def _context(directory: Path, name: str) -> ssl.SSLContext:
        from farstep.membership.tls import TlsFiles

        try:
            return TlsFiles.in_directory(directory, name).client_context()
        except (FileNotFoundError, ssl.SSLError) as error:
            raise CommandError(str(error), status=USAGE) from error

    def get(self, path: str, **parameters: Any) -> Any:
        """Returns the answer to a GET."""
        return self._ask("GET", path, params=parameters).json()

    def send(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """Returns the answer to a command."""
        return self._ask(method, path, json=body).json()

    def follow(self, path: str, last_id: int) -> Iterator[dict[str, Any]]:
        """Yields the lines of a stream of server-sent events until the coordinator goes away."""
        import httpx

        base = self._find()
        limits = httpx.Timeout(TIMEOUT_S, read=30.0)
        try:
            with (
                httpx.Client(verify=self._verify, timeout=limits) as client,
                client.stream("GET", f"{base}{path}", params={"since": last_id}, extensions=_NAME) as answer,
            ):
                self._check(answer)
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line[6:])
        except httpx.HTTPError:
            self._base = None

    def _find(self) -> str:
        self._ask("GET", "/v1/members")
        assert self._base is not None
        return self._base

    def _ask(self, method: str, path: str, **more: Any) -> "httpx.Response":
        import httpx

        causes = []
        for base in [self._base] if self._base else self._bases:
            try:
                with httpx.Client(verify=self._verify, timeout=TIMEOUT_S) as client:
                    answer = client.request(method, f"{base}{path}", extensions=_NAME, **more)
            except httpx.HTTPError as error:
                causes.append(f"{base}: {error or type(error).__name__}")
                continue
            self._check(answer)
            self._base = base
            return answer
        self._base = None
        raise CommandError(
            f"no coordinator answers ({'; '.join(causes) or 'no address'})",
            status=REMOTE,
            hint="the run goes on without one; start it with farstep coordinator",
        )

    @staticmethod
    def _check(answer: "httpx.Response") -> None:
        if answer.is_success:
            return
        answer.read()
        try:
            detail = answer.json()["detail"]
        except (ValueError, KeyError, TypeError):
            detail = f"HTTP {answer.status_code}"
        if isinstance(detail, list):
            detail = "; ".join(f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in detail)
        raise CommandError(str(detail), status=USAGE if answer.status_code in (409, 422) else REMOTE)
