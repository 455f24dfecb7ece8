"""Arguments of the Python interface that are not what they should be, told in one line before any work."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

from farstep.fabric.errors import ConfigError, quoted

__all__ = ["expect", "expect_like", "expect_list", "expect_path", "expect_whole", "is_whole"]


def expect(name: str, value: object, kinds: type | tuple[type, ...], what: str) -> None:
    """Refuses a value of another type.

    Args:
        name: what the caller calls it.
        value: what was given.
        kinds: types it may have; numbers are no truth values.
        what: what it must be, in words.

    Raises:
        ConfigError: naming all of these.
    """
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise ConfigError(f"{name} = {quoted(value)}: must be {what}")


def expect_whole(name: str, value: object, low: int, high: int) -> None:
    """Refuses what is no whole number within bounds.

    Raises:
        ConfigError: naming the bounds.
    """
    if not is_whole(value, low, high):
        raise ConfigError(f"{name} = {quoted(value)}: must be a whole number from {low} to {high}")


def is_whole(value: object, low: int, high: int) -> bool:
    """Whether a value is a whole number within bounds; truth values are none."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return False
    return low <= value.__index__() <= high


def expect_list(name: str, values: object, what: str) -> list[Any]:
    """Returns what a list, or anything else that gives one value after the other, holds.

    Raises:
        ConfigError: it is none: text and tables are not.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise ConfigError(f"{name} = {quoted(values)}: must be a list of {what}")
    return list(values)


def expect_like(name: str, value: object, attributes: Iterable[str], what: str) -> None:
    """Refuses what lacks an attribute: for types of packages that need not be installed.

    Raises:
        ConfigError: naming all of these.
    """
    if any(not hasattr(value, attribute) for attribute in attributes):
        raise ConfigError(f"{name} = {quoted(value)}: must be {what}")


def expect_path(name: str, value: object) -> None:
    """Refuses what names no file.

    Raises:
        ConfigError: it is neither text nor a path.
    """
    expect(name, value, (str, os.PathLike), "a path")
