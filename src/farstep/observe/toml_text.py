"""Tables as TOML, for people to copy from a page into a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(table: Mapping[str, Any]) -> str:
    """Returns a table of what JSON can hold as TOML; what is None is left out.

    Tables of the first level become sections, lists of tables sections in double brackets, and what lies deeper is
    written in place.
    """
    plain = {key: value for key, value in table.items() if not _is_section(value)}
    parts = ["\n".join(_lines(plain))] if plain else []
    for key, value in table.items():
        if isinstance(value, Mapping):
            parts.append("\n".join([f"[{_key(key)}]", *_lines(value)]))
        elif _is_section(value):
            parts += ["\n".join([f"[[{_key(key)}]]", *_lines(entry)]) for entry in value]
    return "\n\n".join(parts) + "\n"


def _is_section(value: Any) -> bool:
    is_list = isinstance(value, list | tuple) and len(value) > 0
    return isinstance(value, Mapping) or (is_list and all(isinstance(entry, Mapping) for entry in value))


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if value is not None:
            yield f"{_key(key)} = {_value(value)}"


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _scalar(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_lines(value)) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(entry) for entry in value) + "]"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    return _scalar(value)


def _scalar(value: Any) -> str:
    # What JSON writes of strings, numbers and truth values is TOML, but for a character that JSON lets through.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
