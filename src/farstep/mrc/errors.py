"""Errors of `farstep.mrc`."""

from __future__ import annotations

__all__ = ["InvalidFieldError", "check_range"]


class InvalidFieldError(ValueError):
    """A value that cannot be configured or put on the wire.

    Attributes:
        field: name of the offending field.
        value: what was given.
        valid: what would have been accepted, in words.
    """

    def __init__(self, field: str, value: object, valid: str) -> None:
        super().__init__(f"{field} = {value!r} is not valid; valid is {valid}")
        self.field = field
        self.value = value
        self.valid = valid


def check_range(field: str, value: float, low: float, high: float, *, whole: bool = True) -> None:
    """Raises `InvalidFieldError` unless `low <= value <= high` (and, if `whole`, `value` is an int)."""
    if whole and (not isinstance(value, int) or isinstance(value, bool)):
        raise InvalidFieldError(field, value, f"a whole number from {low} to {high}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidFieldError(field, value, f"a number from {low} to {high}")
    if not low <= value <= high:
        raise InvalidFieldError(field, value, f"{low} to {high}")
