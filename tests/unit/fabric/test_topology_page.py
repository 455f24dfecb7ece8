"""The page on topologies names every kind, preset, column and key there is."""

import re
from dataclasses import fields
from pathlib import Path

from farstep.fabric.topology import ELEMENT_KINDS, PRESETS, TOPOLOGY_KINDS, Topology, WanLink
from farstep.fabric.topology.graphs import GraphDescription, GraphLink, GraphNics, GraphSwitch

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "topologies.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([a-z0-9_.-]+)`", PAGE))


def test_every_kind_and_preset_is_named():
    assert {*TOPOLOGY_KINDS, *PRESETS} <= NAMED


def test_every_column_is_named():
    columns = {item.name for item in fields(Topology) if item.name.startswith(("node_", "link_", "switch_"))}
    assert columns <= NAMED


def test_every_key_of_a_file_is_named():
    for model in (GraphDescription, GraphSwitch, GraphNics, GraphLink):
        assert set(model.model_fields) <= NAMED
    for key in set(WanLink.model_fields) - {"between"}:
        assert key in PAGE


def test_every_kind_of_element_has_an_example():
    for kind in ELEMENT_KINDS:
        assert f"`{kind}:" in PAGE
