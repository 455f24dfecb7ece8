"""What can go wrong on a connection, as types. Each names the peer, the connection and the cause."""

from __future__ import annotations

__all__ = [
    "ConnectionAborted",
    "ConnectionFailed",
    "EndpointClosed",
    "EngineError",
    "RegionError",
    "SecurityError",
    "WaitTimeout",
]


class EngineError(Exception):
    """Base of every error the transport raises while it runs.

    Attributes:
        peer: name given to the peer when the connection was made; empty if there is none.
        connection: description of the connection; empty if there is none.
        cause: what happened, in words.
    """

    def __init__(self, cause: str, *, peer: str = "", connection: str = "") -> None:
        where = f"{connection} to {peer!r}: " if peer else ""
        super().__init__(f"{where}{cause}")
        self.peer = peer
        self.connection = connection
        self.cause = cause


class ConnectionFailed(EngineError):
    """The connection ended by itself: no path answers any more, or the peer refused or closed it."""


class ConnectionAborted(EngineError):
    """The connection was given up on purpose, here or by the peer."""


class EndpointClosed(EngineError):
    """The endpoint is closed, or belongs to the parent of this process."""


class RegionError(EngineError, ValueError):
    """Memory that cannot be registered, or a range outside a region."""


class SecurityError(EngineError):
    """A connection cannot be as safe as one end asks: a certificate is missing, wrong or not the peer's."""


class WaitTimeout(EngineError, TimeoutError):
    """Nothing failed, but what was waited for did not happen in time."""
