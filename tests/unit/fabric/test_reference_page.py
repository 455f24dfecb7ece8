"""The reference page names every kind, key and field there is."""

import re
from pathlib import Path
from typing import get_args

from farstep.fabric import FAULT_KINDS, EmulatedNetwork, EmulatedPath, Fault
from farstep.fabric.fault_base import Outage

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "fault-script.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`\"?([a-z_]+)\"?`", PAGE))


def models():
    return get_args(get_args(Fault)[0])


def test_every_kind_of_fault_has_a_row_with_its_keys():
    kinds = {get_args(model.model_fields["kind"].annotation)[0]: model for model in models()}
    assert tuple(kinds) == FAULT_KINDS
    common = set(Outage.model_fields) - {"silent"} | {"kind"}
    for kind, model in kinds.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind}` |"))
        for key in set(model.model_fields) - common:
            assert f"`{key}`" in row, f"{kind}: {key}"


def test_every_key_of_a_network_is_named():
    keys = {*EmulatedPath.model_fields, *EmulatedNetwork.model_fields, *Outage.model_fields} - {"paths"}
    assert keys <= NAMED
    assert "[[paths]]" in PAGE
