"""What became of packets is told by tasks, links, series, counters, tables and files: all must say the same."""

import json
import re

import numpy as np
import pytest

from farstep import sim
from farstep.sim.result import SimResult
from tests.unit.observe.parsed_page import Page

FAULTS = [
    {"kind": "loss", "link": "t0/p0/0-t1/p0/0", "loss_percent": 5.0, "at_us": 2, "duration_us": 100},
    {"kind": "link_down", "link": "t0/p1/1-t1/p1/1", "at_us": 10, "duration_us": 50},
    {"kind": "switch_down", "switch": "t1/p0/1", "at_us": 20, "duration_us": 30},
]
PACKET_TRANSPORTS = [name for name in sim.TRANSPORTS if name != "ideal"]


def faulty(transport: str, **run) -> sim.SimResult:
    fabric = sim.fabric("clos", nics=32, planes=2, radix=8)
    jobs = [
        sim.incast(size_bytes=300_000, senders=8, ranks=16),
        sim.permutation(size_bytes=200_000, repeat=3),
    ]
    return sim.simulate(fabric, jobs, transport=transport, faults=FAULTS, sample_interval_us=5, **run)


@pytest.mark.parametrize("transport", PACKET_TRANSPORTS)
def test_tasks_links_series_and_counters_agree(transport):
    result = faulty(transport)
    dropped, trimmed = result.counters["dropped"], result.counters["trimmed"]
    assert dropped > 0
    assert int(result.dropped.sum()) == int(result.links.drops.sum()) == dropped
    assert int(result.trims.sum()) == int(result.links.trims.sum()) == trimmed
    assert int(result.series["dropped"].sum()) == dropped
    assert int(result.series["trims"].sum()) == trimmed
    assert int(result.packets.sum()) == result.counters["sent"]
    assert int(result.series["retransmitted"].sum()) == int(result.retransmitted.sum())
    metrics = result.metrics()
    assert (metrics["dropped"], metrics["trims"]) == (dropped, trimmed)


def test_what_is_late_is_given_up_and_not_dropped():
    fabric = sim.fabric("clos", nics=16, planes=2, radix=8)
    late = [{"kind": "delay", "plane": 0, "delay_ms": 2.0, "at_us": 30}]
    result = sim.simulate(fabric, sim.permutation(size_bytes=2_000_000), faults=late)
    assert result.counters["dropped"] == int(result.dropped.sum()) == 0
    assert int(result.declared_lost.sum()) > 100
    assert int(result.retransmitted.sum()) > 100


@pytest.mark.parametrize("transport", PACKET_TRANSPORTS)
def test_packets_that_arrive_twice_are_those_sent_too_often(transport):
    # A way of 2 ms makes senders give up what is only late: each copy beyond the first is in vain.
    fabric = sim.fabric("clos", nics=16, planes=2, radix=8)
    late = [{"kind": "delay", "plane": 0, "delay_ms": 2.0, "at_us": 30, "duration_ms": 1}]
    result = sim.simulate(fabric, sim.permutation(size_bytes=2_000_000), transport=transport, faults=late)
    packets = -(-result.tasks.size_bytes // 4096).sum()
    assert result.is_complete
    assert int(result.spurious.sum()) <= int(result.retransmitted.sum())
    if not transport.startswith("roce"):  # which throws away whatever comes out of order
        assert int(result.spurious.sum()) == result.counters["delivered"] - packets


def figure(text: str, label: str) -> int:
    found = re.search(rf"^ *{re.escape(label)} +([\d,]+)$", text, re.MULTILINE)
    assert found is not None, label
    return int(found[1].replace(",", ""))


def test_table_files_frame_and_report_agree(tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pytest.importorskip("plotly")
    result = faulty("mrc")
    sums = {
        name: int(getattr(result, name).sum())
        for name in ("packets", "dropped", "trims", "declared_lost", "retransmitted", "spurious")
    }
    assert all(sums.values())
    labels = {
        "packets": "packets",
        "dropped": "dropped",
        "trims": "trimmed",
        "declared_lost": "declared lost",
        "retransmitted": "retransmitted",
        "spurious": "arrived twice",
    }
    assert {name: figure(result.summary(), label) for name, label in labels.items()} == sums
    assert {name: int(result.task_frame[name].sum()) for name in sums} == sums
    again = [sim.SimResult.load(result.to_json(tmp_path / "r.json"))]
    again.append(sim.SimResult.load(result.to_parquet(tmp_path / "r")))
    for read in again:
        assert {name: read.metrics()[name] for name in sums} == sums
    header = json.loads((tmp_path / "r" / "meta.json").read_text())
    assert {name: header["metrics"][name] for name in sums} == sums
    page = Page(result.write_html(tmp_path / "r.html").read_text(encoding="utf-8"))
    rows = {
        "packets sent": "packets",
        "packets dropped by the network": "dropped",
        "packets trimmed": "trims",
        "packets given up by senders": "declared_lost",
        "packets sent again": "retransmitted",
        "packets that arrived twice": "spurious",
    }
    for label, name in rows.items():
        assert f"{label}{sums[name]:,}" in page.text, label


def test_how_often_a_run_is_looked_at_does_not_show(monkeypatch):
    # Progress is told every so often of real time; series must not have a row for each time.
    monkeypatch.setattr("farstep.sim.packet._SLICE_S", 0.001)
    fabric = sim.fabric("clos", nics=32, planes=2, radix=8)
    looks = []
    looked_at = sim.simulate(
        fabric, sim.permutation(size_bytes=10_000_000), sample_interval_us=5, on_progress=looks.append
    )
    alone = sim.simulate(fabric, sim.permutation(size_bytes=10_000_000), sample_interval_us=5)
    assert len(looks) > 1
    assert len(looked_at.series["time_ns"]) == len(alone.series["time_ns"])
    for name, column in alone.series.items():
        assert np.array_equal(looked_at.series[name], column), name
    assert np.array_equal(looked_at.finish_ns, alone.finish_ns)


@pytest.mark.parametrize("transport", ["mrc", "uet-oblivious"])
def test_the_flow_level_says_nothing_of_what_it_does_not_know(transport, tmp_path):
    result = faulty(transport, level="flow")
    assert result.links.drops is None
    assert result.links.trims is None
    assert result.links.max_queue_bytes is None
    with pytest.raises(ValueError, match=r"links.drops: is not known at this level"):
        result.links.counted("drops")
    assert result.metrics()["trims"] is None
    assert result.metrics()["max_queue_bytes"] is None
    assert "trimmed" not in result.summary()
    assert "arrived twice" not in result.summary()
    assert " 0 drops" not in "\n".join(result.story())
    assert int(result.series["dropped"].sum()) == int(result.dropped.sum()) == result.counters["dropped"] > 0
    again = SimResult.load(result.to_json(tmp_path / "r.json"))
    assert again.links.drops is None
    assert again.metrics() == result.metrics()
