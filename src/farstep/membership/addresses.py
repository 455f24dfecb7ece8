"""Where coordinators may be: a list of URLs, or a file of them that is read again at every attempt."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

__all__ = ["MEMBER_PATH", "AddressBook", "AddressError", "member_url"]

MEMBER_PATH = "/v1/member"
"""Path of the websocket for members."""

DEFAULT_PORT = 7077

FILE_BYTES_MAX = 64 << 10

SHOWN_MAX = 80


class AddressError(ValueError):
    """This is no address of a coordinator; the message says what would be valid."""


def member_url(address: str, *, is_secure: bool = False) -> str:
    """Completes `host`, `host:port`, `http(s)://…` or `ws(s)://…` to the URL of the members' websocket.

    Args:
        address: what a person or a file says.
        is_secure: whether an address without a scheme means TLS.

    Raises:
        AddressError: it is none of these.
    """
    if not address.isprintable() or " " in address:  # the parser would leave some of it out
        raise AddressError(
            f"coordinator {_shown(address)} is no address: it has a blank or a control character in it"
        )
    text = address if "://" in address else f"{'wss' if is_secure else 'ws'}://{address}"
    try:
        parts = urllib.parse.urlsplit(text)
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError as error:
        raise AddressError(f"coordinator {_shown(address)}: {error}") from None
    if port == 0:
        raise AddressError(f"coordinator {_shown(address)}: nobody listens at port 0; valid: 1 to 65535")
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not parts.hostname or parts.path not in ("", "/", MEMBER_PATH):
        raise AddressError(
            f"coordinator {_shown(address)} is no address; valid: host:port, ws://host:port, wss://host:port, "
            "file:/path"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}:{port}{MEMBER_PATH}"


class AddressBook:
    """All places where a coordinator may be.

    Args:
        coordinators: addresses, or `file:/path` with one address a line (`#` begins a comment). A single
            string may hold several, parted by commas.
        is_secure: whether addresses without a scheme mean TLS: true for whoever has certificates.

    Raises:
        AddressError: one of them is no address, or there is none.
    """

    def __init__(self, coordinators: Sequence[str] | str, *, is_secure: bool = False) -> None:
        entries = coordinators.split(",") if isinstance(coordinators, str) else list(coordinators)
        self._is_secure = is_secure
        self._entries = [entry.strip() for entry in entries if entry.strip()]
        if not self._entries:
            raise AddressError("no coordinator is named; valid: host:port, wss://host:port, file:/path")
        for entry in self._entries:
            if entry.startswith("file:"):
                _expect_file(entry)
            else:
                member_url(entry)

    def __str__(self) -> str:
        return ", ".join(self._entries)

    def urls(self) -> list[str]:
        """Returns the URLs to try, in order; files that cannot be read now contribute none."""
        urls: list[str] = []
        for entry in self._entries:
            if not entry.startswith("file:"):
                urls.append(member_url(entry, is_secure=self._is_secure))
                continue
            path = _path_of(entry)
            try:
                with path.open(encoding="utf-8") as file:
                    lines = file.read(FILE_BYTES_MAX).splitlines()
            except (OSError, UnicodeDecodeError):
                continue
            for line in lines:
                address = line.partition("#")[0].strip()
                if address:
                    try:
                        urls.append(member_url(address, is_secure=self._is_secure))
                    except AddressError:
                        continue  # half written; it is read again
        return list(dict.fromkeys(urls))


def _path_of(entry: str) -> Path:
    return Path(entry.removeprefix("file://") if entry.startswith("file://") else entry[5:])


def _expect_file(entry: str) -> None:
    """Refuses what never will be a file that can be read; one that is not there yet may come.

    Raises:
        AddressError: saying what is there instead.
    """
    path, shown = _path_of(entry), _shown(entry)
    if not str(path).isprintable() or str(path) == ".":
        raise AddressError(f"coordinator {shown} names no file; valid: file:PATH of a file with addresses")
    try:
        if path.is_dir():
            raise AddressError(f"coordinator {shown}: {path} is a folder; valid: a file with addresses")
        if path.exists():
            if not os.access(path, os.R_OK):
                raise AddressError(f"coordinator {shown}: {path} may not be read")
            return
        above = next(parent for parent in path.absolute().parents if parent.exists())
    except OSError as error:  # a name that is too long, a loop of links, a folder that may not be looked into
        raise AddressError(f"coordinator {shown}: {error.strerror or error}") from None
    if not above.is_dir():
        raise AddressError(f"coordinator {shown}: {above} is a file, so nothing can be below it")


def _shown(text: str) -> str:
    """Text for a message: on one line, and shortened if it is long."""
    shown = ascii(text) if not text.isprintable() else repr(text)
    return shown if len(shown) <= SHOWN_MAX else shown[: SHOWN_MAX - 4] + "...'"
