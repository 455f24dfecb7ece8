"""TOML as text: configurations written so that they can be read back, and single values from a command line."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

__all__ = ["parse_value", "plain_table", "section", "toml_value"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


def toml_value(value: object) -> str:
    """Renders a value; tables within become inline tables.

    Raises:
        TypeError: TOML has no such value.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(key))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    raise TypeError(f"no TOML form for {value!r}")


def _key(text: str) -> str:
    return text if _BARE_KEY.match(text) else json.dumps(text, ensure_ascii=False)


def plain_table(table: Mapping[str, Any]) -> list[str]:
    """Renders keys and values, one per line."""
    return [f"{_key(key)} = {toml_value(value)}" for key, value in table.items()]


def section(model: BaseModel, *, first: Sequence[str] = ()) -> list[str]:
    """Renders the keys of a table that are set, each followed by its description.

    Args:
        model: the table.
        first: keys to begin with.
    """
    given = model.model_dump(mode="json", exclude_none=True)
    ordered = {**{key: given[key] for key in first if key in given}, **given}
    plain = {key: f"{_key(key)} = {toml_value(value)}" for key, value in ordered.items()}
    fields = type(model).model_fields
    texts = {key: (fields[key].description or "") if key in fields else "" for key in plain}
    width = max((len(line) for key, line in plain.items() if texts[key]), default=0)
    return [
        f"{line:<{width}}  # {' '.join(texts[key].split())}" if texts[key] else line
        for key, line in plain.items()
    ]


def parse_value(text: str) -> Any:
    """Reads one value as TOML has it; what is no TOML is a text without quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError, ValueError, RecursionError):
        return text
