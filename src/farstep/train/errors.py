"""The ways a training run can end badly, as seen by whoever started it."""

from farstep.fabric.errors import ConfigError

__all__ = ["ConfigError", "RunFailed", "TrainError"]


class TrainError(Exception):
    """Base of the errors of a run that has begun."""


class RunFailed(TrainError):
    """A run ended because a rank, the network or the path emulator failed.

    The message is one line and names the rank and the cause.
    """
