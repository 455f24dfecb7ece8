"""The error of a measurement."""

__all__ = ["PerfError"]


class PerfError(Exception):
    """A measurement cannot be made, or was broken off: one line that says why."""
