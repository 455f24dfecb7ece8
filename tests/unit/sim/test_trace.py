"""Flows followed packet by packet: nothing is missing, and following changes nothing."""

import numpy as np
import pytest

from farstep import sim
from farstep.sim.trace import FATES, TRACE_COLUMNS
from tests.unit.observe.parsed_page import Page

FAULTS = [
    {"kind": "loss", "link": "t0/p0/0-t1/p0/0", "loss_percent": 5.0, "at_us": 2, "duration_us": 100},
    {"kind": "link_down", "link": "t0/p1/1-t1/p1/1", "at_us": 10, "duration_us": 50},
]
PACKET_TRANSPORTS = [name for name in sim.TRANSPORTS if name != "ideal"]


def incast(transport: str = "mrc", **run) -> sim.SimResult:
    fabric = sim.fabric("clos", nics=32, planes=2, radix=8)
    return sim.simulate(
        fabric, sim.incast(size_bytes=300_000, senders=8), transport=transport, faults=FAULTS, **run
    )


@pytest.mark.parametrize("transport", PACKET_TRANSPORTS)
def test_every_packet_of_a_flow_is_told(transport):
    plain = incast(transport)
    worst = plain.worst_flow
    result = incast(transport, trace_flows=[worst])
    assert (result.finish_ns == plain.finish_ns).all(), "following a flow changes nothing"
    trace = result.trace
    assert tuple(trace) == TRACE_COLUMNS
    assert {len(column) for column in trace.values()} == {int(result.packets[worst])}
    fates = np.bincount(trace["fate"], minlength=len(FATES))
    assert fates[2] == result.trims[worst]
    assert fates[3:].sum() <= result.dropped[worst] <= fates[3:].sum() + fates[0] + 1
    assert int(trace["is_again"].sum()) == result.retransmitted[worst]
    whole = trace["fate"] == FATES.index("delivered")
    assert np.unique(trace["sequence"][whole]).tolist() == list(range(74)), "300,000 bytes in 74 packets"
    assert (trace["ended_ns"][whole] > trace["sent_ns"][whole]).all()
    assert trace["ended_ns"][whole].max() <= result.finish_ns[worst] + 1


def test_a_packet_takes_a_way_from_its_source_to_its_target():
    result = incast(trace_flows=[3])
    source, target = result.tasks.source[3], result.tasks.target[3]
    assert set(result.trace["task"].tolist()) == {3}
    for row in result.trace["links"]:
        way = row[row >= 0]
        assert result.links.source[way[0]] == source
        assert result.links.target[way[-1]] == target
        assert (result.links.source[way[1:]] == result.links.target[way[:-1]]).all()
    assert (result.links.plane[result.trace["links"][:, 0]] == result.trace["plane"]).all()
    lost = result.trace["where"] >= 0
    assert all(
        where in row
        for where, row in zip(result.trace["where"][lost], result.trace["links"][lost], strict=True)
    )


def test_steps_on_one_connection_are_told_apart():
    fabric = sim.fabric("leaf-spine", leaves=2, spines=2, nics_per_leaf=2)
    job = sim.flows(pairs=((0, 3),), size_bytes=40_960, repeat=3)
    result = sim.simulate(fabric, job, trace_flows=[0, 4])
    tasks = [task for task in (0, 4) if result.tasks.is_flow[task]]
    for task in tasks:
        mine = result.trace["task"] == task
        assert int(mine.sum()) == 10
        assert (result.trace["sent_ns"][mine] >= result.start_ns[task]).all()


@pytest.mark.parametrize(
    ("flows", "error"),
    [
        ([8, 9, 10], r"run\.trace_flows = 9: no such task; valid: 0 to 8"),
        ([-1], r"run\.trace_flows\[0\] = -1: must be greater than or equal to 0"),
        (["slowest"], r"run\.trace_flows\[0\] = \"slowest\": must be an integer"),
        (list(range(65)), r"run\.trace_flows"),
    ],
)
def test_what_is_no_flow_cannot_be_followed(flows, error):
    with pytest.raises(sim.ConfigError, match=error):
        incast(trace_flows=flows)


def test_a_delay_has_no_packets():
    fabric = sim.fabric("leaf-spine", leaves=2, spines=2, nics_per_leaf=2)
    with pytest.raises(sim.ConfigError, match=r"run\.trace_flows = 0: is a delay; only flows have packets"):
        sim.simulate(fabric, sim.training(data=4, gradient_bytes=1000), trace_flows=[0])


def test_rates_have_no_packets_and_say_so():
    result = incast(level="flow", trace_flows=[1])
    assert result.trace == {}
    assert "run.trace_flows" in result.meta["ignored"]


def test_files_keep_the_trace(tmp_path):
    pytest.importorskip("pyarrow")
    result = incast(trace_flows=[2, 5])
    for path in (result.to_json(tmp_path / "r.json"), result.to_parquet(tmp_path / "r")):
        again = sim.SimResult.load(path)
        for name, column in result.trace.items():
            assert (again.trace[name] == column).all(), name


def one_flow(**run) -> sim.SimResult:
    """A flow of which one of four uplinks of a plane dies."""
    fabric = sim.fabric("clos", nics=32, planes=2, radix=8)
    dead = [{"kind": "link_down", "link": "t0/p1/0-t1/p1/0", "at_us": 3}]
    return sim.simulate(fabric, sim.flows(pairs=((0, 20),), size_bytes=300_000), faults=dead, **run)


def test_a_story_tells_where_packets_were_lost():
    story = "\n".join(one_flow(trace_flows=[0]).story())
    assert "Its packets were under way for " in story
    assert "Dropped (link down): " in story
    assert "The last to arrive was packet " in story
    assert "Its packets" not in "\n".join(one_flow().story())


def test_the_report_shows_the_packets(tmp_path):
    pytest.importorskip("plotly")
    page = Page(one_flow(trace_flows=[0]).write_html(tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "Its packets, one mark each" in page.text
    assert "dropped: link down before t" in page.text
    assert "→ nic/20" in page.text
