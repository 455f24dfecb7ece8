"""The Grafana dashboard asks for nothing that a coordinator does not export, and for all that members report."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from farstep.coordinator import metrics as module
from farstep.coordinator.metrics import Metrics
from farstep.coordinator.status import status_of
from farstep.membership import messages as wire
from farstep.membership.effects import Note
from tests.unit.coordinator.crew import staffed_coordinator

DASHBOARD = Path(__file__).resolve().parents[3] / "deploy" / "grafana" / "farstep.json"
NAME = re.compile(r"\bfarstep_[a-z0-9_]+")


@pytest.fixture(scope="module")
def exported():
    """Names and labels of every series of a coordinator whose members report everything."""
    coordinator, crew = staffed_coordinator("a-0")
    figures = dict.fromkeys((*module._NANOSECONDS, *module._PLAIN), 1.0)
    figures |= {f"plane.0.{key}": 1.0 for key in module._PLANES}
    crew.say(1, wire.Heartbeat(step=1, rtt_ns=1, figures=figures))
    metrics = Metrics()
    metrics.note(Note("generation", {"urgent": True, "took_ms": 1.0}))
    status = status_of(coordinator.proposer, crew.now_ns, started_ns=0)
    found = {}
    for family in text_string_to_metric_families(metrics.render(status, coordinator).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def dashboard():
    return json.loads(DASHBOARD.read_text())


def expressions(dashboard):
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [note["expr"] for note in dashboard["annotations"]["list"]]
    return [
        *found,
        *(item["query"]["query"] for item in dashboard["templating"]["list"] if item["type"] == "query"),
    ]


def test_every_metric_of_the_dashboard_is_exported(dashboard, exported):
    asked = {name for text in expressions(dashboard) for name in NAME.findall(text)}
    assert len(asked) > 20
    assert asked - set(exported) == set()


def test_every_figure_has_a_place(dashboard, exported):
    asked = {name for text in expressions(dashboard) for name in NAME.findall(text)}
    derived = {f"farstep_regroup_seconds_{part}" for part in ("sum", "count")}
    assert set(exported) - asked - derived == set()


def test_every_label_that_is_asked_for_is_there(dashboard, exported):
    for text in expressions(dashboard):
        names = NAME.findall(text)
        labels = {"job", "instance"}.union(*(exported[name] for name in names))
        asked = {label for group in re.findall(r"by \(([^)]*)\)", text) for label in re.split(r",\s*", group)}
        asked |= {
            label for group in re.findall(r"\{([^}]*)\}", text) for label in re.findall(r"(\w+)=", group)
        }
        assert asked <= labels, text
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = NAME.findall(target["expr"])
            labels = set().union(*(exported[name] for name in names))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, target


def test_panels_do_not_overlap(dashboard):
    taken = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
