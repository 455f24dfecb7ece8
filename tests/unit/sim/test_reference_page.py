"""The reference page of the scenario file says what the models say.

`python -m tests.unit.sim.test_reference_page` writes the tables of the page anew.
"""

import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel

from farstep.fabric.topology.build import TOPOLOGY_KINDS
from farstep.sim.scenario import Run, Scenario
from farstep.sim.transports import TRANSPORTS, Switch, Transport
from farstep.sim.workloads.tables import JOBS, _Job

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "scenario-file.md"

HEAD = "| Key | Default | Values | |\n|---|---|---|---|"
COMMON = set(_Job.model_fields)
SECTIONS: dict[str, tuple[type[BaseModel], set[str]]] = {
    "## `[transport]`": (Transport, set()),
    "## `[switch]`": (Switch, set()),
    "## `[run]`": (Run, set()),
    "### Every kind": (_Job, set()),
    **{f"### `{kind.model_fields['kind'].default}`": (kind, {*COMMON, "kind"}) for kind in JOBS},
}


def row(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    default = (
        "required"
        if field.is_required()
        else ""
        if field.default is None or field.default_factory is not None
        else f"`{_toml(field.default)}`"
    )
    limits = ", ".join(dict.fromkeys([*_limits(field.metadata), *_values(field.annotation)]))
    return f"| `{name}` | {default} | {limits} | {field.description} |"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(each) for each in value)}]"
    if isinstance(value, int):
        return f"{value:_}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _values(annotation: Any) -> list[str]:
    """Limits and choices inside an annotation, such as those of `Annotated[int, Field(ge=1)] | None`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        return [
            *_limits([part for each in metadata for part in getattr(each, "metadata", [each])]),
            *_values(inner),
        ]
    if origin is Literal:
        return [f"`{_toml(choice)}`" for choice in get_args(annotation)]
    if origin in (Union, UnionType):
        return [text for part in get_args(annotation) if part is not NoneType for text in _values(part)]
    return []


def _limits(metadata: list[Any]) -> list[str]:
    texts = []
    for limit in metadata:
        match limit:
            case annotated_types.Ge(ge=low):
                texts.append(f"≥ {_number(low)}")
            case annotated_types.Gt(gt=low):
                texts.append(f"> {_number(low)}")
            case annotated_types.Le(le=high):
                texts.append(f"≤ {_number(high)}")
            case annotated_types.Lt(lt=high):
                texts.append(f"< {_number(high)}")
    return texts


def _number(value: float) -> str:
    if value < 10**6 or value != int(value):
        return f"{value:,.10g}"
    if int(value) & (int(value) - 1) == 0:
        return f"2^{int(value).bit_length() - 1}"
    mantissa, exponent = f"{value:.6e}".split("e")
    mantissa = f"{float(mantissa):g}"
    return f"10^{int(exponent)}" if mantissa == "1" else f"{mantissa}·10^{int(exponent)}"


def rows(model: type[BaseModel], without: set[str]) -> list[str]:
    return [row(model, name) for name in model.model_fields if name not in without]


def with_tables(page: str) -> str:
    """The page with the tables that the models give."""
    for heading, (model, without) in SECTIONS.items():
        assert f"\n{heading}\n" in page, f"the page lacks {heading}"
        before, after = page.split(f"\n{heading}\n", 1)
        table = "\n".join((HEAD, *rows(model, without), ""))
        page = f"{before}\n{heading}\n" + re.sub(
            r"\| Key \|.*\n(\|.*\n)+", lambda _, t=table: t, after, count=1
        )
    return page


def test_the_tables_are_those_of_the_models():
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page


def test_every_section_transport_and_network_is_named():
    page = PAGE.read_text(encoding="utf-8")
    for name in Scenario.model_fields:
        assert f"[{name}]" in page
    for name, what in TRANSPORTS.items():
        assert f"| `{name}` | {what} |" in page
    for kind in TOPOLOGY_KINDS:
        assert f"`{kind}`" in page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
