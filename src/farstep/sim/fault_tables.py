"""Entries of a fault script as a scenario writes them: times in any unit, and cables that are drawn.

`farstep.fabric.faults` knows seconds only. Here entries become such, and what is wrong with one is told in the keys,
values and units it was written with.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from farstep.fabric.errors import ConfigError, names, quoted
from farstep.fabric.faults import Fault
from farstep.fabric.topology import SIMULATED_KINDS

__all__ = ["DRAWS", "as_written", "in_seconds"]

DRAWS = ("choose", "choose_percent")
"""Keys that draw some of the cables a target means."""

_STEMS = ("at", "duration", "period", "down")
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
_STEP_KEYS = ("at_step", "duration_steps", "period_steps", "down_steps")
_NOT_HERE = frozenset({*_STEP_KEYS, "path"})

_KEYS = {
    str(get_args(model.model_fields["kind"].annotation)[0]): tuple(model.model_fields)
    for model in get_args(get_args(Fault)[0])
}
"""Keys of each kind of fault."""


def in_seconds(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns an entry as fault scripts have it: without draws, and with times in seconds.

    Raises:
        ConfigError: the kind, a key or a time cannot be used; the message begins with `where`.
    """
    _check_keys(table, where)
    plain = {key: value for key, value in table.items() if key not in DRAWS}
    for stem in _STEMS:
        given = [f"{stem}_{unit}" for unit in _PER_SECOND if f"{stem}_{unit}" in plain]
        if len(given) > 1:
            raise ConfigError(f"{where}: give {given[0]} or {given[1]}, not both")
        for key in given:
            value = plain.pop(key)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0:
                raise ConfigError(f"{where}.{key} = {quoted(value)}: must be a number, at least 0")
            plain[f"{stem}_s"] = value / _PER_SECOND[key.rpartition("_")[2]]
    return plain


def _check_keys(table: Mapping[str, Any], where: str) -> None:
    kind = table.get("kind")
    if kind is None:
        raise ConfigError(f"{where}.kind: this key is required; valid: {names(SIMULATED_KINDS)}")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise ConfigError(f"{where}.kind = {quoted(kind)}: not known; valid: {names(SIMULATED_KINDS)}")
    if kind not in SIMULATED_KINDS:
        raise ConfigError(
            f"{where}.kind = {quoted(kind)}: not simulated; valid in a simulation: {names(SIMULATED_KINDS)}"
        )
    for key in _STEP_KEYS:
        if table.get(key) is not None:
            stem = key.rpartition("_")[0]
            raise ConfigError(f"{where}.{key}: counts steps of a training run; give {_spelled(stem)} here")
    valid = _valid_keys(kind)
    for key in table:
        if key not in valid and key != "path":  # of which the targets speak
            close = difflib.get_close_matches(str(key), valid, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ConfigError(f"{where}: no key {quoted(key)} here; {hint}valid keys: {names(valid)}")


def _valid_keys(kind: str) -> tuple[str, ...]:
    """Keys of a kind in the order of its model, times in every unit."""
    keys: list[str] = []
    for key in _KEYS[kind]:
        stem = key.removesuffix("_s")
        if key in _NOT_HERE:
            continue
        keys += [f"{stem}_{unit}" for unit in _PER_SECOND] if key != stem and stem in _STEMS else [key]
    return (*keys, *(DRAWS if kind != "restore" else ()))


def _spelled(stem: str) -> str:
    *some, last = (f"{stem}_{unit}" for unit in _PER_SECOND)
    return f"{', '.join(some)} or {last}"


_ENTRY = re.compile(r"faults\[(\d+)\]")
_IN_STEPS = re.compile(r"\b(at|duration|period|down)_s or \1_steps?\b(?:, and not both)?")
_TIME = re.compile(r"\b(?P<stem>at|duration|period|down)_s\b(?P<value> = [0-9.e+-]*[0-9])?")
_BOUND = re.compile(r"(?P<words>must be (?:greater|less) than (?:or equal to )?)(?P<bound>[0-9.e+-]*[0-9])")


def as_written(message: str, tables: Sequence[Mapping[str, Any]]) -> str:
    """Says what is wrong with a fault script in the keys and units its entries were written with."""
    return "\n".join(_line_as_written(line, tables) for line in message.splitlines())


def _line_as_written(line: str, tables: Sequence[Mapping[str, Any]]) -> str:
    entry = _ENTRY.search(line)
    table = tables[int(entry[1])] if entry is not None and int(entry[1]) < len(tables) else {}
    line = _IN_STEPS.sub(lambda found: _spelled(found[1]), line)
    written = {stem: key for stem in _STEMS for key in _units_of(stem) if key in table}
    units = {key.rpartition("_")[2] for stem, key in written.items() if f"{stem}_s" in line}

    def named(found: re.Match[str]) -> str:
        key = written.get(found["stem"])
        if key is None:
            return found[0]
        return f"{key} = {quoted(table[key])}" if found["value"] else key

    def scaled(found: re.Match[str]) -> str:
        return f"{found['words']}{float(found['bound']) * _PER_SECOND[units.copy().pop()]:g}"

    line = _TIME.sub(named, line)
    return _BOUND.sub(scaled, line) if len(units) == 1 else line


def _units_of(stem: str) -> Iterable[str]:
    return (f"{stem}_{unit}" for unit in _PER_SECOND)
