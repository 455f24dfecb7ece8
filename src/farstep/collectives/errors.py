"""What can go wrong in a collective. Every error names the collective, the peer and the cause."""

from __future__ import annotations

from farstep.engine import ConnectionAborted, EngineError, WaitTimeout


class CommunicatorError(EngineError, RuntimeError):
    """A collective failed. A RuntimeError too, because that is what frameworks around torch expect and handle."""


class CommunicatorAborted(CommunicatorError, ConnectionAborted):
    """The communicator was aborted, here or by a peer, or has failed earlier; it can do nothing any more."""


class CommunicatorTimeout(CommunicatorError, WaitTimeout):
    """A collective did not end in time; the message names the ranks it waited for."""


class CollectiveMismatch(CommunicatorError):
    """Ranks called different collectives, or the same with different sizes, types or arguments."""
