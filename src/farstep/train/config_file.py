"""Reads `run.toml` into a `RunConfig`, words every mistake in one line, and writes it back.

What is valid is told from the models themselves, so a new field needs no new message.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from farstep.fabric.errors import called, describe_validation_error, quoted, read_toml
from farstep.fabric.expected import expect, expect_path
from farstep.fabric.timeline import FaultTimeline
from farstep.train.config import RunConfig, demo_config
from farstep.train.errors import ConfigError

__all__ = ["dump_toml", "load_config", "parse_config"]

_UNITS = frozenset("bytes kb mb gb kib mib bps mbps gbps ns us ms s seconds steps percent".split())  # noqa: SIM905
"""Last words of a key that name a unit; a known stem with another unit gets a message of its own."""


def load_config(path: Path | None, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Reads a configuration, or returns the built-in demo when there is no file.

    Args:
        path: a TOML file, or None for the demo.
        overrides: dotted key to value, from the command line; they win over the file.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or holds something unusable.
    """
    _expect_overrides(overrides)
    overrides = dict(overrides or {})
    if path is None:
        steps = overrides.get("run.steps")
        try:
            demo = demo_config(steps)
        except ConfigError:
            demo = demo_config()  # what is wrong with it is told below, in our words
        table = demo.model_dump(mode="json", exclude_none=True)
        return parse_config(table, source="command line", overrides=overrides)
    expect_path("path", path)
    return parse_config(read_toml(path), source=called(path), overrides=overrides)


def parse_config(
    table: Mapping[str, Any], *, source: str, overrides: Mapping[str, Any] | None = None
) -> RunConfig:
    """Turns a TOML table into a `RunConfig`.

    Args:
        table: what a TOML file holds.
        source: name of the file, for messages.
        overrides: dotted key (`run.steps`) to value; they win over the table.

    Raises:
        ConfigError: one line that names source, key, value and what is valid.
    """
    expect("table", table, Mapping, "a table, as a TOML file holds it")
    expect("source", source, str, "text")
    _expect_overrides(overrides)
    merged: dict[str, Any] = {
        key: dict(part) if isinstance(part, Mapping) else part for key, part in table.items()
    }
    for dotted, value in (overrides or {}).items():
        section, _, key = dotted.partition(".")
        part = merged.setdefault(section, {})
        if isinstance(part, dict):
            part[key] = value
    try:
        config = RunConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_describe(error, source, overrides or {})) from error
    _check_faults(config, source)
    if config.run.min_groups > config.num_ranks:
        raise ConfigError(
            f"{source}: run.min_groups = {config.run.min_groups}: must be at most {config.num_ranks}, "
            "the replica groups of all sites together"
        )
    return config


def _expect_overrides(overrides: object) -> None:
    if overrides is not None:
        expect(
            "overrides", overrides, Mapping, 'a table of values by dotted key such as "run.steps", or None'
        )
        assert isinstance(overrides, Mapping)
        for key in overrides:
            expect("a key of overrides", key, str, 'text such as "run.steps"')


def _check_faults(config: RunConfig, source: str) -> None:
    """Checks that the faults name things of the network and that there is a network to break."""
    network = config.emulated_network(source)
    if network is not None:
        FaultTimeline(config.faults, network, source=source)
    elif config.faults:
        why = "network.emulate is false" if len(config.sites) > 1 else "there is one site only"
        raise ConfigError(f"{source}: faults: no path to apply them to, because {why}; remove the faults")


def dump_toml(config: RunConfig) -> str:
    """Returns the configuration as TOML that `parse_config` reads back to an equal value."""
    expect("config", config, RunConfig, "a farstep.train.RunConfig")
    lines = [
        "# A farstep run. Every key is optional: what is left out keeps the value shown by",
        "# `farstep train --show-config`. Units are part of the names.",
    ]
    arrays: list[str] = []
    for name, value in config:
        if isinstance(value, BaseModel):
            lines += ["", f"[{name}]", *_section_lines(value)]
            continue
        for entry in value:
            arrays += ["", f"[[{name}]]", *_section_lines(entry)]
    return "\n".join([*lines, *arrays, ""])


def _section_lines(section: BaseModel) -> list[str]:
    """Renders a table, each key followed by its description."""
    given = section.model_dump(exclude_none=True)
    if "kind" in given:  # a fault reads best when it begins with what it is
        given = {"kind": given.pop("kind"), **given}
    plain = [f"{key} = {_toml_value(value)}" for key, value in given.items()]
    described = [type(section).model_fields[key].description for key in given]
    width = max((len(line) for line, text in zip(plain, described, strict=True) if text), default=0)
    return [
        f"{line:<{width}}  # {text}" if text else line for line, text in zip(plain, described, strict=True)
    ]


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    raise TypeError(f"no TOML form for {quoted(value)}")


def _describe(error: ValidationError, source: str, overrides: Mapping[str, Any]) -> str:
    """Words the first problem; unknown keys come first, because they often cause the others."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    problem = problems[0]
    location = problem["loc"]
    if location[0] in ("faults", "paths") and len(location) > 1:
        return describe_validation_error(error, source).splitlines()[0]
    dotted = _dotted(location)
    where = "command line" if dotted in overrides else source
    if problem["type"] == "extra_forbidden":
        return f"{where}: {dotted} = {_show(problem['input'])}: unknown key; {_closest_key(location)}"
    if problem["type"] == "missing":
        return f"{where}: {dotted} is missing: {_what_is_valid(location)}"
    if problem["type"] == "string_unicode":  # a name on the command line, in another encoding
        return f"{where}: {dotted} = {_show(problem['input'])}: must be UTF-8 text"
    if problem["type"] == "value_error":
        return f"{where}: {dotted} = {_show(problem['input'])}: {problem['ctx']['error']}"
    return f"{where}: {dotted} = {_show(problem['input'])}: {_what_is_valid(location)}"


def _dotted(location: Sequence[int | str]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _show(value: object) -> str:
    if isinstance(value, Mapping | BaseModel):
        return "a table"
    if isinstance(value, list | tuple):
        text = "[" + ", ".join(map(_show, value)) + "]"
    else:
        text = _toml_value(value) if isinstance(value, bool | int | float | str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _model_at(location: Sequence[int | str]) -> type[BaseModel] | None:
    """Returns the model whose fields live at `location`, or None for a free-form table."""
    model: type[BaseModel] | None = RunConfig
    for part in location:
        if isinstance(part, int) or model is None:
            continue
        field = model.model_fields.get(part)
        model = _model_in(field.annotation) if field is not None else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)


def _closest_key(location: Sequence[int | str]) -> str:
    model = _model_at(location[:-1])
    key, known = str(location[-1]), list(model.model_fields) if model else []
    stem, _ = _split_unit(key)
    for wanted in known:
        if _split_unit(wanted)[0] == stem:
            return f"the unit is {_split_unit(wanted)[1]}: write {wanted}"
    elsewhere = [f"{section}.{key}" for section in RunConfig.model_fields if key in _fields_of(section)]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "valid here: " + ", ".join(known)


def _fields_of(section: str) -> list[str]:
    model = _model_at([section])
    return list(model.model_fields) if model else []


def _split_unit(key: str) -> tuple[str, str]:
    stem, _, unit = key.rpartition("_")
    return (stem, unit) if stem and unit in _UNITS else (key, "")


def _what_is_valid(location: Sequence[int | str]) -> str:
    names = [part for part in location if isinstance(part, str)]
    model = _model_at(names[:-1])
    field = model.model_fields.get(names[-1]) if model else None
    if field is None:
        return "must be a table"
    if isinstance(location[-1], int) or _model_in(field.annotation):
        array = get_origin(field.annotation) is tuple
        return (
            f"must be an array of tables, written as [[{names[-1]}]]"
            if array
            else f"must be a table, written as [{names[-1]}]"
        )
    text = f"must be {_kind(field)}"
    return f"{text} ({field.description})" if field.description else text


def _kind(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    if get_origin(annotation) is UnionType:
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(_toml_value(value) for value in get_args(annotation))
    if annotation is str:
        return "a text in quotes, not empty"
    kind = {int: "an integer", float: "a number", bool: "true or false"}[annotation]
    bounds = []
    for limit in field.metadata:
        match limit:
            case annotated_types.Gt(gt=low):
                bounds.append(f"greater than {low}")
            case annotated_types.Ge(ge=low):
                bounds.append(f"at least {low}")
            case annotated_types.Lt(lt=high):
                bounds.append(f"less than {high}")
            case annotated_types.Le(le=high):
                bounds.append(f"at most {high}")
    return f"{kind} {' and '.join(bounds)}" if bounds else kind
