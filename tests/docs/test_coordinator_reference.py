"""The reference of the coordinator names every event, route, command and metric that there is, and no other."""

import ast
import json
import re
from pathlib import Path

import pytest

from farstep.coordinator import Coordinator, create_app
from farstep.membership import MembershipConfig
from tests.docs.examples import ROOT

SOURCE = ROOT / "src" / "farstep"
TELLING = {"Note", "_note", "event", "on_event", "_tell", "add", "sample"}
"""Calls whose first argument is the kind of an event."""

OF_A_RUN = {"step", "eval", "checkpoint"}
"""Kinds of `farstep.observe.events`, told by the same names in training; they have their own section."""


def literals(node):
    if isinstance(node, ast.IfExp):
        return [*literals(node.body), *literals(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def told_kinds():
    found = {"log_gap"}  # written past the others, as the disk was full
    for room in ("membership", "coordinator", "train"):
        for path in (SOURCE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and node.args:
                    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                    if name in TELLING:
                        found.update(literals(node.args[0]))
    return {kind for kind in found if re.fullmatch(r"[a-z_]+", kind)} - OF_A_RUN


def documented_kinds():
    page = (ROOT / "docs" / "reference" / "event-log.md").read_text()
    section = page.partition("## Kinds of a coordinator's log")[2].partition("\n## ")[0]
    terms = re.findall(r"^(`[a-z_`, ]+)\n: ", section, re.MULTILINE)
    return {name for term in terms for name in re.findall(r"`([a-z_]+)`", term)}


def test_every_kind_of_event_is_documented():
    assert len(told_kinds()) > 35
    assert told_kinds() - documented_kinds() == set()


def test_no_kind_is_documented_that_nobody_tells():
    assert documented_kinds() - told_kinds() == set()


@pytest.fixture(scope="module")
def openapi():
    return create_app(Coordinator(MembershipConfig())).openapi()


def test_every_route_is_documented(openapi):
    page = (ROOT / "docs" / "reference" / "coordinator-api.md").read_text()
    listed = set(re.findall(r"^\| `([A-Z]+ /[^`]+)` \|", page, re.MULTILINE))
    routes = {f"{verb.upper()} {path}" for path, verbs in openapi["paths"].items() for verb in verbs}
    assert listed == routes


def test_the_guide_names_metrics_that_the_dashboard_knows():
    guide = (ROOT / "docs" / "guides" / "coordinator.md").read_text()
    dashboard = json.dumps(json.loads(Path(ROOT / "deploy" / "grafana" / "farstep.json").read_text()))
    named = set(re.findall(r"farstep_[a-z_]+", guide))
    assert len(named) >= 4
    assert {name for name in named if name not in dashboard} == set()
