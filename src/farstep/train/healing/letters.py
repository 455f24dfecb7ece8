"""Exchanges the addresses of a line by messages between the two members, so that nobody has to keep them."""

import base64
import binascii
import threading
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["ANSWER_KIND", "OPEN_KIND", "LetterStore", "letter_of"]

OPEN_KIND = "heal/open"
ANSWER_KIND = "heal/answer"
VALUE_BYTES_MAX = 64 << 10
NAME_MAX = 1024


class LetterStore:
    """A store of one line: what is set here is sent to the peer, what the peer has sent can be got here.

    Args:
        send: takes key and value.
    """

    def __init__(self, send: Callable[[str, bytes], None]) -> None:
        self._send = send
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        """Sends a value to the peer."""
        self._send(key, value)

    def deliver(self, key: str, value: bytes) -> None:
        """Takes what the peer has sent."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        """Blocks until the peer's value is there.

        Raises:
            TimeoutError: it did not come in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(f"the peer has not sent {key!r} within {timeout_s} s")
            return self._values[key]


def letter(kind: str, lane: int, name: str, key: str, value: bytes) -> dict[str, Any]:
    """The message that carries a value."""
    return {"kind": kind, "lane": lane, "name": name, "key": key, "value": base64.b64encode(value).decode()}


def letter_of(payload: Mapping[str, Any], lane: int) -> tuple[str, str, str, bytes] | None:
    """Kind, name of the line, key and value of a message; None if it is no well-formed letter to this lane."""
    if payload.get("kind") not in (OPEN_KIND, ANSWER_KIND) or payload.get("lane") != lane:
        return None
    name, key, text = payload.get("name"), payload.get("key"), payload.get("value")
    if not (isinstance(name, str) and isinstance(key, str) and isinstance(text, str)):
        return None
    if max(len(name), len(key)) > NAME_MAX or len(text) > 2 * VALUE_BYTES_MAX:
        return None
    try:
        return payload["kind"], name, key, base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
