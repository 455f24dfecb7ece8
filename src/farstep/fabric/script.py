"""Fault scripts as a whole: read from TOML, checked against each other and against a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from farstep.fabric.channels import Channel
from farstep.fabric.errors import ConfigError, describe_validation_error, parse_toml, quoted, read_toml
from farstep.fabric.expected import expect, expect_list
from farstep.fabric.fault_base import ScriptEntry
from farstep.fabric.faults import FAULTS_MAX, Fault, Restore
from farstep.fabric.tables import Table

_FAULT: TypeAdapter[Fault] = TypeAdapter(Fault)


def parse_fault(table: Mapping[str, Any], *, source: str = "fault") -> Fault:
    """Builds one fault, for instance to apply it at once; `at_s` and `at_step` may be left out.

    Raises:
        ConfigError: with one line per mistake, each starting with `source`.

    Example:
        >>> parse_fault({"kind": "loss", "path": "north", "loss_percent": 1}).loss_percent
        1.0
    """
    try:
        return _FAULT.validate_python(table)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error, source)) from error


class FaultScript(Table):
    """Faults with the time or step at which each starts.

    Example:
        >>> script = FaultScript.parse_toml('''
        ... [[faults]]
        ... at_step = 40
        ... kind = "path_down"
        ... path = "north"
        ... duration_steps = 20
        ... ''')
        >>> script.faults[0].at_step
        40
    """

    faults: tuple[Fault, ...] = Field(default=(), max_length=FAULTS_MAX)

    @model_validator(mode="after")
    def _entries_are_timed(self) -> Self:
        check_script(self.faults)
        return self

    @classmethod
    def parse(cls, table: Mapping[str, Any], *, source: str = "fault script") -> FaultScript:
        """Builds a script from a table as TOML gives it.

        Raises:
            ConfigError: with one line per mistake, each starting with `source`.
        """
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            raise ConfigError(describe_validation_error(error, source)) from error

    @classmethod
    def parse_toml(cls, text: str, *, source: str = "fault script") -> FaultScript:
        """Builds a script from TOML text.

        Raises:
            ConfigError: the text is no TOML, or no valid script.
        """
        return cls.parse(parse_toml(text, source=source), source=source)

    @classmethod
    def load(cls, path: str | Path) -> FaultScript:
        """Reads a script from a TOML file.

        Raises:
            ConfigError: the file cannot be read or holds no valid script.
        """
        return cls.parse(read_toml(path), source=str(path))

    def check_targets(self, channels: Iterable[Channel], *, source: str = "fault script") -> None:
        """Checks that every target names something of a network.

        Raises:
            ConfigError: with one line per unknown name, listing the known ones.
        """
        listed = tuple(channels)
        lines = []
        for index, entry in enumerate(self.faults):
            if not entry.target.keys:
                continue
            try:
                entry.target.resolve(listed)
            except ConfigError as error:
                lines.append(f"{source}: faults[{index}].{error}")
        if lines:
            raise ConfigError("\n".join(lines))


def faults_of(script: FaultScript | Iterable[Fault]) -> tuple[Fault, ...]:
    """Returns the entries of a script, or of a list of them.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(script, FaultScript):
        return script.faults
    listed = expect_list("script", script, "faults, or a FaultScript")
    for index, entry in enumerate(listed):
        expect(f"script[{index}]", entry, ScriptEntry, "a fault; parse_fault() reads tables")
    return tuple(listed)


def check_script(faults: Iterable[Fault]) -> None:
    """Checks a script as a whole: every entry is timed, names are unique, restores name a fault.

    Raises:
        ValueError: naming the first entry that is wrong.
    """
    entries = tuple(faults)
    known = {entry.name for entry in entries if entry.name is not None and entry.kind != "restore"}
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if entry.at_s is None and entry.at_step is None:
            raise ValueError(f"faults[{index}] ({entry.kind}) needs at_s or at_step")
        if entry.name is not None:
            if entry.name in seen:
                raise ValueError(f"faults[{index}].name = {quoted(entry.name)} is used twice")
            seen.add(entry.name)
        if isinstance(entry, Restore) and entry.fault is not None and entry.fault not in known:
            listed = ", ".join(sorted(known)) or "none; give the fault a name"
            wrong = f"faults[{index}].fault = {quoted(entry.fault)}"
            raise ValueError(f"{wrong}: no such fault; named faults: {listed}")
