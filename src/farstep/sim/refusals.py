"""How a mistake in a table of a scenario is told, whether it came from a file or from Python: in one plain line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError, model_validator

from farstep.fabric.errors import ConfigError, describe_validation_error, names, quoted
from farstep.fabric.tables import Table

__all__ = ["PlainModel", "plain_validation_error"]

_AT_KEY = "\0"
"""In front of a message of ours that begins with a key of the table it is about."""

_CHOICES = {
    "placement": "packed, spread, random, or a list of NIC numbers",
    "senders": "a number of ranks, or a list of different ranks",
    "victim": "true, false, or two ranks",
    "pairs": "neighbours, opposite, or pairs of ranks",
}
"""What keys that take values of several kinds take."""
_CHOICE = re.compile(
    r"(?P<where>.*?)(?P<key>[a-z_]+)"
    r"(?P<inner>\.(?:literal\[[^]]*\]|bool|int|constrained-int|tuple\[).*?)"
    r"(?P<rest> = .*|: .*)$"
)
"""A message about one of these kinds, which names the kind in the key."""
_WHOLE = re.compile(r"\.(?:literal\[[^]]*\]|bool|int|constrained-int)$")
"""The kind where the value shown is the whole one, and not one of several in it."""


def plain_validation_error(error: ValidationError, source: str, *, section: str | None = None) -> str:
    """Says the first mistake in one line, in plain words.

    Args:
        error: what the validation library says.
        source: name of the file; empty for none.
        section: the table that was validated, if it was not the whole file.
    """
    prefix = () if section is None else (section,)
    line = describe_validation_error(error, source, prefix=prefix).splitlines()[0].removeprefix(": ")
    line = line.replace(f": {_AT_KEY}", ".")
    if (choice := _CHOICE.match(line)) is not None and choice["key"] in _CHOICES:
        where, key, rest = choice["where"], choice["key"], choice["rest"]
        value = rest[3:].partition(": ")[0] if rest.startswith(" = ") else ""
        shown = f" = {value}" if value and _WHOLE.match(choice["inner"]) else ""
        return f"{where}{key}{shown}: must be {_CHOICES[key]}"
    return line


if TYPE_CHECKING:  # to type checkers a table is what pydantic makes it
    from pydantic._internal._model_construction import ModelMetaclass as _Told
else:

    class _Told(type(BaseModel)):
        """Makes the constructor of a table refuse what is wrong as files are refused."""

        def __call__(cls, *args: Any, **values: Any) -> Any:
            fields: dict[str, Any] = cls.model_fields
            kind = fields["kind"].default if "kind" in fields else None
            name = kind if isinstance(kind, str) else cls.__name__.lower()
            if args:
                raise ConfigError(
                    f"{name}: {quoted(args[0])} has no name; valid: {names(fields)}, each as KEY=VALUE"
                )
            try:
                return super().__call__(**values)
            except ValidationError as error:
                raise ConfigError(plain_validation_error(error, "", section=name)) from error


def _plain_types(annotation: Any) -> set[Any]:
    """Types a value may have, out of their unions and annotations; collections stay as they are."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain_types(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return {found for part in get_args(annotation) for found in _plain_types(part)}
    if origin is Literal:
        return {type(value) for value in get_args(annotation)}
    return {annotation}


class PlainModel(Table, metaclass=_Told):
    """A table of a scenario.

    Raises:
        ConfigError: on construction, naming the key, its value and what is valid.
    """

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_numbers(cls, table: Any) -> Any:
        """Takes neither true for 1 nor text for a number."""
        for key, value in table.items() if isinstance(table, Mapping) else ():
            if isinstance(value, bool | str) and key in cls.model_fields:
                types = _plain_types(cls.model_fields[key].annotation)
                if type(value) not in types and types & {int, float}:
                    what = _CHOICES.get(key) or ("a number" if float in types else "an integer")
                    shown = quoted(value) if isinstance(value, str) else value
                    raise ValueError(f"{_AT_KEY}{key} = {shown}: must be {what}")
        return table
