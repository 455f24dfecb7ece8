"""What membership raises. Every message says what is being waited for, and for whom."""

__all__ = [
    "Evicted",
    "GenerationOver",
    "MembershipClosed",
    "MembershipError",
    "MembershipTimeout",
    "RunEnded",
]


class MembershipError(RuntimeError):
    """Base of everything membership raises."""


class MembershipTimeout(MembershipError, TimeoutError):
    """No generation came in time; the message says what the coordinator, or the lack of one, waits for."""


class Evicted(MembershipError):
    """The latest generation is without this member: it may come back only as a new incarnation.

    Attributes:
        was_asked: the member itself had asked to leave, or was drained.
    """

    def __init__(self, message: str, *, was_asked: bool = False) -> None:
        super().__init__(message)
        self.was_asked = was_asked


class RunEnded(MembershipError):
    """The run has reached its end; there will be no further generation.

    Attributes:
        step: number of steps it has committed; None if nobody said so.
        was_evicted: the run had gone on without this member before it ended.
    """

    def __init__(self, message: str, *, step: int | None = None, was_evicted: bool = False) -> None:
        super().__init__(message)
        self.step = step
        self.was_evicted = was_evicted


class MembershipClosed(MembershipError):
    """The membership was closed in this process."""


class GenerationOver(MembershipError, TimeoutError):
    """An entry of a store will not come: a later, urgent generation has replaced the one it belongs to."""
