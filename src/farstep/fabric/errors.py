"""What is said to a user whose description of a network or of faults is wrong.

One line per mistake: which file, which key, which value, and what would be valid.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

VALUE_CHARACTERS_MAX = 60
"""Longest rendering of a wrong value in a message; a whole table pasted back helps nobody."""

_PLAIN_WORDS = (
    ("input should be a valid dictionary or instance of", "must be a table of"),
    ("input should be", "must be"),
    ("a valid integer, got a number with a fractional part", "a whole number"),
    ("a valid integer, unable to parse string as an integer", "an integer"),
    ("a valid number, unable to parse string as a number", "a number"),
    ("a valid integer", "an integer"),
    ("a valid tuple", "a list"),
    ("a valid boolean, unable to interpret input", "true or false"),
    ("a valid boolean", "true or false"),
    ("a valid string", "text"),
    ("a valid ", "a "),
    ("string should have at least 1 character", "must not be empty"),
    ("string should have", "must have"),
)
"""What the validation library says, and how people say it."""


def quoted(value: object) -> str:
    r"""Renders a value that a user gave, for a message: on one line, and shortened if it is long.

    Example:
        >>> print(quoted("two\nlines"), quoted(7))
        "two\nlines" 7
    """
    try:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    except Exception:  # a value of a class that cannot even be shown
        text = f"<{type(value).__name__}>"
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    if len(text) <= VALUE_CHARACTERS_MAX:
        return text
    end = '..."' if isinstance(value, str) else "..."
    return text[: VALUE_CHARACTERS_MAX - len(end)] + end


class ConfigError(ValueError):
    """A description written by a user cannot be used.

    The message has one line per mistake, each naming the source, the key, the value and what is valid.
    """


def describe_validation_error(
    error: ValidationError, source: str, *, prefix: Sequence[str | int] = ()
) -> str:
    """Renders a pydantic validation error as one line per mistake.

    Args:
        error: what pydantic raised.
        source: file name (or another name of the origin) put in front of every line.
        prefix: keys that lead to the validated table inside `source`.
    """
    lines = []
    items = error.errors(include_url=False)
    for item in items:
        if item["type"] == "too_short" and any(_is_inside(other["loc"], item["loc"]) for other in items):
            continue  # the entries that would have made it long enough are reported themselves
        key = _key([*prefix, *_without_union_tags(item["loc"], item)])
        is_ours = item["type"] == "value_error"
        message = item["msg"].removeprefix("Value error, ") if is_ours else _plain(item["msg"])
        if item["type"] == "missing":
            lines.append(f"{source}: {key}: this key is required")
        elif item["type"] == "extra_forbidden":
            lines.append(f"{source}: {key}: there is no such key here")
        elif item["type"] == "union_tag_not_found":
            lines.append(f"{source}: {key}: this key is required; valid: {', '.join(_kinds(item['loc']))}")
        elif item["type"] == "union_tag_invalid":
            valid = item["ctx"]["expected_tags"].replace("'", "")
            lines.append(f"{source}: {key} = {_shown(item['input'])}: not known; valid: {valid}")
        elif item["type"] in ("too_short", "too_long"):
            lines.append(f"{source}: {key}: {_length_rule(item)}")
        elif item["type"] == "value_error" and not isinstance(item["input"], (str, int, float)):
            lines.append(f"{source}: {key}: {message}" if key else f"{source}: {message}")
        else:
            lines.append(f"{source}: {key} = {_shown(item['input'])}: {message}")
    return "\n".join(lines)


def called(path: str | Path) -> str:
    """Returns what a file is called in messages: its path, quoted if that is not on one line."""
    return str(path) if str(path).isprintable() else quoted(str(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    """Reads a TOML file; a byte order mark, as some editors write it, is no part of it.

    Raises:
        ConfigError: the file cannot be read, is no UTF-8 text or is not TOML.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{called(path)}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{called(path)}: is not UTF-8 text (byte {error.start})") from error
    except ValueError as error:  # a name that no file can have
        raise ConfigError(f"{quoted(str(path))}: cannot be read: {error}") from error
    return parse_toml(text, source=called(path))


def parse_toml(text: str, *, source: str) -> dict[str, Any]:
    """Reads TOML text.

    Args:
        text: what a user wrote.
        source: where it comes from, for messages.

    Raises:
        ConfigError: it is not TOML, or holds what no configuration does.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: is not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: is not usable TOML: arrays or tables are nested too deeply") from error
    except ValueError as error:  # an integer of thousands of digits, which Python refuses to read
        raise ConfigError(f"{source}: is not usable TOML: a number is too long") from error


def check_keys(table: object, valid: Iterable[str]) -> None:
    """Refuses keys a table does not have, and says which it has.

    Raises:
        ValueError: naming the first unknown key.
    """
    if not isinstance(table, Mapping):
        return
    known = tuple(valid)
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ValueError(f"no key {quoted(key)} here; {hint}valid keys: {', '.join(known)}")


def names(known: Iterable[object]) -> str:
    """Renders the valid names of a thing, for the end of an error message."""
    listed = ", ".join(str(name) for name in known)
    return listed or "none"


def _without_union_tags(loc: tuple[str | int, ...], item: Any) -> list[str | int]:
    """Drops the tag that pydantic inserts after the index of a discriminated union member."""
    cleaned: list[str | int] = []
    for position, part in enumerate(loc):
        follows_index = position > 0 and isinstance(loc[position - 1], int)
        if follows_index and any(part in tags for tags in _UNION_TAGS.values()):
            continue
        cleaned.append(part)
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        cleaned.append("kind")
    return cleaned


def _is_inside(loc: tuple[str | int, ...], table: tuple[str | int, ...]) -> bool:
    return len(loc) > len(table) and loc[: len(table)] == table


def _key(parts: Sequence[str | int]) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _shown(value: object) -> str:
    if isinstance(value, dict) and "kind" in value:
        value = value["kind"]
    return quoted(value)


def _length_rule(item: Any) -> str:
    limits = item["ctx"]
    most = limits.get("max_length")
    valid = f"at least {limits['min_length']}" if most is None else f"at most {most}"
    return f"number of entries = {limits['actual_length']}; valid: {valid}"


def _plain(message: str) -> str:
    """Says what the validation library says as the rest of our messages do."""
    text = message[:1].lower() + message[1:]
    for found, plain in _PLAIN_WORDS:
        text = text.replace(found, plain)
    return text


def _kinds(loc: tuple[str | int, ...]) -> tuple[str, ...]:
    """Values of `kind` in the list that a key is in; a lone table is a fault."""
    known = [_UNION_TAGS[part] for part in loc if isinstance(part, str) and part in _UNION_TAGS]
    return known[0] if known else _UNION_TAGS.get("faults", ())


_UNION_TAGS: dict[str, tuple[str, ...]] = {}


def register_union_tags(key: str, tags: Iterable[str]) -> None:
    """Makes `describe_validation_error` leave these values of `kind` out of key names, and list them.

    Args:
        key: of the tables that are told apart by them.
        tags: the values.
    """
    _UNION_TAGS[key] = tuple(tags)
