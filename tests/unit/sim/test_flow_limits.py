"""What the flow level says of itself where it is further from packets than its bands."""

import re
from pathlib import Path

import pytest

from farstep import sim
from farstep.sim.flow import TRANSPORTS, limits_of

FABRIC = sim.fabric("leaf-spine", leaves=2, spines=4, nics_per_leaf=4)
PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "flow-level.md"


def limits(workload, transport="mrc", level="flow"):
    return sim.simulate(FABRIC, workload, transport=transport, level=level).meta.get("limits", [])


@pytest.mark.parametrize(
    ("workload", "transport", "told"),
    [
        (sim.permutation(size_bytes=10_000), "mrc", []),
        (sim.permutation(size_bytes=2_000_000), "uet-reps", []),
        (sim.permutation(size_bytes=10_000), "uet-reps", ["flows below 1 MB"]),
        (sim.permutation(size_bytes=2_000_000), "roce", []),
        (sim.permutation(size_bytes=2_000_000), "uet-oblivious", ["oblivious spraying"]),
        (sim.permutation(size_bytes=10_000), "ideal", []),
        (sim.incast(senders=4), "mrc", ["incast"]),
        (sim.incast(senders=4), "tcp", ["timeouts"]),
        (sim.incast(senders=4), "roce", ["incast"]),
        (sim.incast(senders=4), "ndp", ["receiver pull"]),
        (sim.all_to_all(size_bytes=10_000), "roce", ["all-to-all"]),
        (sim.all_to_all(size_bytes=10_000), "ndp", ["all-to-all", "receiver pull"]),
        (sim.collective(collective="all_to_all", size_bytes=80_000), "mrc", ["all-to-all"]),
        (sim.collective(size_bytes=80_000), "mrc", []),
        (
            [sim.all_to_all(ranks=4), sim.incast(senders=3, ranks=4, victim=False)],
            "mrc",
            ["incast", "all-to-all"],
        ),
        (sim.permutation(size_bytes=10_000).tasks(range(8), seed=1), "uet-reps", []),
    ],
)
def test_a_result_names_its_limits(workload, transport, told):
    assert [text.partition(":")[0] for text in limits(workload, transport)] == told


def test_faults_are_a_limit_of_what_waits_for_timeouts():
    assert limits_of("mrc", has_faults=True) == []
    told = {
        name: [text for text in limits_of(name, has_faults=True) if text.startswith("faults: ")]
        for name in ("roce", "tcp", "uet-reps", "ndp")
    }
    assert all(len(texts) == 1 for texts in told.values())
    assert "nobody waits for timeouts" in told["uet-reps"][0]
    assert told["uet-reps"] == told["ndp"]
    assert "who waits for a timer" in told["roce"][0]
    assert "who waits for a timer" in told["tcp"][0]


def test_packets_have_none():
    assert limits(sim.incast(senders=4, size_bytes=10_000), "mrc", level="packet") == []


def test_the_page_says_of_every_limit_what_the_result_says():
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    kinds = ("incast", "all-to-all", "permutation", "all-reduce")
    fabrics = (
        sim.fabric("torus", shape=[2, 2, 2]),
        sim.fabric("leaf-spine", leaves=2, spines=1, nics_per_leaf=4),
    )
    texts = {
        text
        for name in TRANSPORTS
        for size in (1.0, 1e7)
        for fabric in fabrics
        for text in limits_of(name, kinds, flow_bytes=size, has_faults=True, topology=fabric)
    }
    assert len(texts) == 14
    for text in texts:
        what = text.partition(":")[0]
        assert re.search(rf"\*\*{what}\.?\*\*", page, re.IGNORECASE), f"the page lacks {what!r}"
