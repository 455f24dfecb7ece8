"""The ways a training run can end badly, as seen by whoever started it."""

from farstep.fabric.errors import ConfigError

__all__ = ["ConfigError", "RunFailed", "TrainError", "reason_of"]


class TrainError(Exception):
    """Base of the errors of a run that has begun."""


class RunFailed(TrainError):
    """A run ended because a rank, the network or the path emulator failed.

    The message is one line and names the rank and the cause.
    """


def reason_of(error: BaseException) -> str:
    """Says on one line, and briefly, why a member goes."""
    text = " ".join(str(error).split())
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:200]
