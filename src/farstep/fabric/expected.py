"""Arguments of the Python interface that are not what they should be, told in one line before any work."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsIndex

from farstep.fabric.errors import ConfigError, called, quoted

__all__ = [
    "COUNT_MAX",
    "expect",
    "expect_count",
    "expect_folder",
    "expect_like",
    "expect_list",
    "expect_number",
    "expect_path",
    "expect_whole",
    "is_whole",
]

COUNT_MAX = 2**53
"""Largest number of steps, samples or bytes of an argument: what JSON carries exactly."""


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


def expect_count(
    name: str, value: object, *, least: int = 0, most: int = COUNT_MAX, may_be_none: bool = False
) -> None:
    """Refuses what is no whole number of at least so much, nor None where that is allowed.

    Raises:
        ConfigError: naming what is valid.
    """
    if not is_whole(value, least, most) and not (may_be_none and value is None):
        upper = "" if most == COUNT_MAX else f" and at most {most}"
        raise ConfigError(
            f"{name} is {quoted(value)}; valid: a whole number of at least {least}{upper}"
            f"{', or None' * may_be_none}"
        )


def expect_number(
    name: str, value: object, most: float = math.inf, *, least: float | None = None, may_be_none: bool = False
) -> None:
    """Refuses what is no number above 0, or of at least `least`, nor None where that is allowed.

    Raises:
        ConfigError: naming the bounds.
    """
    if may_be_none and value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value > 0 if least is None else value >= least) or not value <= most:  # type: ignore[operator]
        lower = "above 0" if least is None else f"of at least {least:g}"
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise ConfigError(
            f"{name} = {quoted(value)}: must be a number {lower}{upper}{', or None' * may_be_none}"
        )


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


def expect_folder(name: str, value: object) -> None:
    """Refuses what neither is a folder nor can become one.

    Raises:
        ConfigError: naming what is in the way.
    """
    expect_path(name, value)
    text = os.fsdecode(os.fspath(value))  # type: ignore[call-overload]
    if not text or "\0" in text:
        raise ConfigError(f"{name} = {quoted(text)}: must be the path of a folder")
    for path in (Path(text), *Path(text).parents):
        try:
            is_there, is_folder = path.exists(), path.is_dir()
        except OSError as error:  # a name that is too long, or a folder that may not be looked into
            raise ConfigError(f"{name} = {quoted(text)}: cannot be a folder: {error.strerror}") from error
        if is_there:
            if not is_folder:
                raise ConfigError(f"{name} = {quoted(text)}: must be a folder, but {called(path)} is a file")
            return
