"""Figures for Prometheus: names, units, and what members can do to them."""

import math
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from farstep.coordinator import metrics as module
from farstep.coordinator.metrics import Metrics
from farstep.coordinator.status import status_of
from farstep.membership import messages as wire
from farstep.membership.effects import Note
from tests.unit.coordinator.crew import staffed_coordinator


def samples(metrics, coordinator, **more):
    now_ns = time.monotonic_ns()
    text = metrics.render(status_of(coordinator.proposer, now_ns, started_ns=0), coordinator, **more).decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_members_generation_and_step():
    coordinator, crew = staffed_coordinator("a-0", "b-0")
    crew.say(1, wire.Heartbeat(step=12, rtt_ns=3_000_000))
    found = samples(Metrics(), coordinator)
    assert found["farstep_generation",] == 1
    assert found["farstep_step",] == 12
    assert found["farstep_members", "training"] == 2
    assert found["farstep_member_up", "a", "a-0", "training"] == 1
    assert found["farstep_member_step", "a", "a-0"] == 12
    assert found["farstep_member_rtt_seconds", "a", "a-0"] == 0.003
    assert found["farstep_waiting",] == 0


def test_times_are_seconds_and_bytes_are_bytes():
    coordinator, crew = staffed_coordinator("a-0")
    figures = {
        "step_time_ns": 21e6,
        "step_max_ns": 2e9,
        "tx_bytes": 5e9,
        "plane.1.tx_bytes": 7.0,
        "plane.0.good": 31.0,
    }
    crew.say(1, wire.Heartbeat(step=1, figures=figures))
    found = samples(Metrics(), coordinator)
    assert found["farstep_step_seconds", "a", "a-0"] == 0.021
    assert found["farstep_step_p100_seconds", "a", "a-0"] == 2.0
    assert found["farstep_sent_bytes", "a", "a-0"] == 5e9
    assert found["farstep_plane_sent_bytes", "1", "a", "a-0"] == 7
    assert found["farstep_plane_paths_good", "0", "a", "a-0"] == 31


def test_odd_figures_are_left_out():
    coordinator, crew = staffed_coordinator("a-0")
    figures = {"loss": math.nan, "unheard": 1.0, "plane.x.good": 1.0, "plane.0.evil": 1.0, "samples": 4.0}
    crew.say(1, wire.Heartbeat(step=1, figures=figures))
    found = samples(Metrics(), coordinator)
    assert [key for key in found if key[0].startswith(("farstep_loss", "farstep_plane", "unheard"))] == []
    assert found["farstep_step_samples", "a", "a-0"] == 4


def test_a_member_that_left_leaves_no_figures():
    coordinator, crew = staffed_coordinator("a-0", "b-0")
    metrics = Metrics()
    assert ("farstep_member_step", "b", "b-0") in samples(metrics, coordinator)
    crew.die(2)
    crew.pass_time(0.01)
    assert ("farstep_member_step", "b", "b-0") not in samples(metrics, coordinator)


def test_events_and_regroups_are_counted():
    coordinator, _ = staffed_coordinator("a-0")
    metrics = Metrics()
    metrics.note(Note("member_lost", {}, "a-0"))
    metrics.note(Note("generation", {"urgent": True, "took_ms": 80.0}))
    metrics.note(Note("generation", {"urgent": False, "took_ms": 0.0}))
    found = samples(metrics, coordinator, num_unwritten=3)
    assert found["farstep_events_total", "member_lost"] == 1
    assert found["farstep_generations_total", "urgent"] == 1
    assert found["farstep_generations_total", "planned"] == 1
    assert found["farstep_regroup_seconds_count",] == 1
    assert found["farstep_regroup_seconds_sum",] == pytest.approx(0.08)
    assert found["farstep_log_missing_lines",] == 3


def test_members_cannot_make_endless_series(monkeypatch):
    monkeypatch.setattr(module, "KINDS_MAX", 3)
    coordinator, _ = staffed_coordinator("a-0")
    metrics = Metrics()
    for number in range(20):
        metrics.note(Note(f"kind_{number}"))
    metrics.note(Note("kind_0"))
    found = {
        key[1]: value
        for key, value in samples(metrics, coordinator).items()
        if key[0].endswith("events_total")
    }
    assert found == {"kind_0": 2, "kind_1": 1, "kind_2": 1, "other": 17}
