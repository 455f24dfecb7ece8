"""What can go wrong when state travels from healthy members to one that lacks it."""

from farstep.train.errors import TrainError

__all__ = ["HealingError", "ImageRejected", "SourcesDisagree", "StateNotPortable"]


class HealingError(TrainError):
    """A member could not be given the state of the run. The message says from whom it tried and why it failed."""


class ImageRejected(HealingError):
    """A manifest or bytes from a peer are malformed, too large, or not what their hash says."""


class SourcesDisagree(HealingError):
    """Healthy members hold different state for the same step; the message names them and the first difference."""


class StateNotPortable(TrainError, TypeError):
    """A state holds an object that cannot travel as plain data; the message names where and what can."""
