"""What can go wrong with a lab that is no mistake in a file."""

__all__ = ["LabError"]


class LabError(RuntimeError):
    """The machine cannot build a lab, or a lab is not what it should be."""
