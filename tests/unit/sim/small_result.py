"""A result small enough to work out by hand: two NICs on two planes, and three flows in two steps."""

from types import SimpleNamespace

import numpy as np

from farstep.fabric.topology.node_names import NodeNames, numbers_of
from farstep.sim.result import LinkUse, SimResult
from farstep.sim.tasks import TaskBuilder


def two_planes(rate_gbps: float = 100.0) -> SimpleNamespace:
    """NICs 0, 1 and one switch per plane (2, 3); cables 0-2, 1-2, 0-3, 1-3, two directions each."""
    cables = np.array([(0, 2), (1, 2), (0, 3), (1, 3)], np.int32)
    tier, plane = np.array([-1, -1, 0, 0], np.int8), np.array([0, 0, 0, 1], np.int16)
    return SimpleNamespace(
        name="two-planes",
        num_nics=2,
        num_planes=2,
        node_tier=tier,
        names=NodeNames(tier, plane, numbers_of(tier, plane)),
        link_source=np.stack([cables[:, 0], cables[:, 1]], axis=1).ravel(),
        link_target=np.stack([cables[:, 1], cables[:, 0]], axis=1).ravel(),
        link_rate_gbps=np.full(8, rate_gbps),
        link_plane=np.repeat(np.array([0, 0, 1, 1], np.int16), 2),
    )


def small_result(**meta) -> SimResult:
    build = TaskBuilder(job_names=["train"])
    first = build.flows([0, 1], [1, 0], 12_500, phase="victim")
    build.tag = 1
    second = build.flows([0], [1], 25_000)
    build.after_all(second, first)
    links = LinkUse.of(
        two_planes(),
        {
            "bytes": np.array([20_000, 0, 0, 20_000, 18_000, 0, 0, 18_000]),
            "drops": np.array([0, 0, 0, 2, 0, 0, 0, 0]),
            "trims": np.zeros(8, np.int64),
            "max_queue_bytes": np.array([0, 0, 0, 9_000, 0, 0, 0, 0]),
        },
    )
    return SimResult.of(
        build.table(),
        {
            "start_ns": np.array([0, 0, 2_000]),
            "finish_ns": np.array([1_000, 2_000, 5_000]),
            "packets": np.array([4, 4, 8]),
            "retransmitted": np.array([0, 1, 1]),
            "dropped": np.array([0, 1, 1]),
            "declared_lost": np.array([0, 1, 1]),
            "trims": np.array([0, 0, 3]),
            "spurious": np.array([0, 0, 0]),
        },
        links,
        series={"time_ns": np.array([0, 1_000]), "plane_bytes": np.array([[1, 2], [3, 4]])},
        ev_events={
            "time_ns": np.array([2_500, 9_000]),
            "source": np.array([0, 0]),
            "target": np.array([1, 1]),
            "ev": np.array([7, 7]),
            "plane": np.array([1, 1]),
            "state": np.array([2, 0]),
        },
        counters={"sent": 16},
        meta={
            "transport": "mrc",
            "faults": [{"time_ns": 2_400, "kind": "link_down", "text": "link 5 down"}],
            **meta,
        },
    )
