"""The page of the transports' knobs says what `farstep.sim.rivals` says.

`python -m tests.unit.sim.test_transport_page` writes the tables of the page anew.
"""

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from farstep.sim import packet_knobs
from farstep.sim.packet import MRC_KNOBS
from farstep.sim.rivals import RIVALS, RivalKnobs
from farstep.sim.transports import Transport

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "reference" / "transport-knobs.md"
CLASSES = list(dict.fromkeys(type(knobs) for knobs in RIVALS.values()))
EVERYWHERE = set(packet_knobs._EVERYWHERE)


def descriptions(of: type) -> dict[str, str]:
    """The string under each field of a class."""
    (node,) = ast.parse(inspect.getsource(of)).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for entry, text in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(entry, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[ast.unparse(entry.target)] = " ".join(str(text.value.value).split())
    return found


def rows(of: type) -> list[str]:
    told = {**descriptions(RivalKnobs), **descriptions(of)}
    common = {item.name: item.default for item in fields(RivalKnobs)} if of is not RivalKnobs else {}
    hints = get_type_hints(of)
    lines = ["| Key | Default | |", "|---|---|---|"]
    for item in fields(of):
        if common.get(item.name) == item.default:
            continue
        choices = ", ".join(f"`{choice}`" for choice in get_args(hints[item.name]))
        text = f"{told[item.name]} {'One of ' + choices + '.' if choices else ''}".strip()
        lines.append(f"| `{item.name}` | `{_toml(item.default)}` | {text} |")
    return lines


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:_}" if isinstance(value, int) else f"{value:g}"


def keys_table() -> list[str]:
    """Which keys of a scenario's `[transport]` count with which transport."""
    engines = {name: packet_knobs.PACKET_TRANSPORTS[name][0] for name in ("mrc", *RIVALS)}
    columns = {engine: [name for name in engines if engines[name] == engine] for engine in engines.values()}
    heads = ["`uet-*`" if engine == "uet" else f"`{engine}`" for engine in columns]
    lines = [f"| Key | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for key in Transport.model_fields:
        marks = ["•" if key in packet_knobs._KNOBS[engine] else "" for engine in columns]
        if any(marks):
            lines.append(f"| `{key}` | {' | '.join(marks)} |")
    return lines


def with_tables(page: str) -> str:
    tables = {"## Keys of `[transport]`": keys_table(), "### All": rows(RivalKnobs)}
    for of in CLASSES:
        names = ", ".join(f"`{name}`" for name, knobs in RIVALS.items() if type(knobs) is of)
        tables[f"### {names}"] = rows(of)
    for heading, lines in tables.items():
        assert f"\n{heading}\n" in page, f"the page lacks {heading}"
        before, after = page.split(f"\n{heading}\n", 1)
        table = "\n".join([*lines, ""])
        page = f"{before}\n{heading}\n" + re.sub(r"(\|.*\n)+", lambda _, t=table: t, after, count=1)
    return page


def test_the_tables_are_those_of_the_code():
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page


def test_every_knob_of_mrc_has_a_row_with_its_default():
    page = PAGE.read_text(encoding="utf-8").split("\n### `mrc`\n", 1)[1].split("\n### ", 1)[0]
    named = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page, re.MULTILINE))
    assert named == {name: _toml(value) for name, value in MRC_KNOBS.items()}


def test_every_transport_is_described():
    page = (DOCS / "concepts" / "transports.md").read_text(encoding="utf-8")
    for name in ("mrc", *RIVALS, "ideal"):
        assert f"`{name}`" in page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
