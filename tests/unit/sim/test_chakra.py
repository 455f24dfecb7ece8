"""Chakra execution traces: the format, and what nodes become."""

import json

import numpy as np
import pytest

from farstep.sim.tasks import WorkloadError
from farstep.sim.workloads.chakra import read_chakra, trace_files
from farstep.sim.workloads.chakra_format import NodeType, read_nodes
from tests.unit.sim.chakra_writer import node, write_trace
from tests.unit.sim.test_jobs import finish_times

COMP, SEND, RECV, COLL = NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL


def test_nodes_are_read_as_written(tmp_path):
    write_trace(
        tmp_path / "t.0.et",
        [
            node(3, COMP, duration_us=17, name="matmul", num_ops=1 << 40, is_cpu_op=False, ratio=0.5),
            node(9, COLL, deps=[3, 300], data_deps=[7], comm_size=-1, pg_name="tp", dims=[1, 500]),
        ],
    )
    first, second = read_nodes(tmp_path / "t.0.et")
    assert (first.number, first.name, first.kind, first.duration_us) == (3, "matmul", COMP, 17)
    assert first.attributes == {"num_ops": 1 << 40, "is_cpu_op": False, "ratio": 0.5}
    assert second.deps == [3, 300, 7]
    assert second.attributes == {"comm_size": -1, "pg_name": "tp", "dims": [1, 500]}


def test_a_trace_written_by_protobuf_is_read(tmp_path):
    # GlobalMetadata(version="0.0.4") and Node(id=1, name="All-Reduce", type=COMM_COLL_NODE) with the attributes
    # comm_type = 0 and comm_size = 1048576 (int64), byte for byte as the format's definition demands
    data = bytes.fromhex(
        "07 0a05 302e302e34"
        "30 0801 120a 416c6c2d526564756365 1807"
        "520d 0a09 636f6d6d5f74797065 4800"
        "520f 0a09 636f6d6d5f73697a65 48808040"
    )
    (tmp_path / "t.0.et").write_bytes(data)
    (only,) = read_nodes(tmp_path / "t.0.et")
    assert (only.name, only.kind) == ("All-Reduce", COLL)
    assert only.attributes == {"comm_type": 0, "comm_size": 1 << 20}


def two_ranks(folder, collective=None, groups=None):
    """Rank 0 computes, sends and joins the all-reduce; rank 1 receives, computes and joins it."""
    reduce = collective or {"comm_type": 0, "comm_size": 1000}
    write_trace(
        folder / "t.0.et",
        [
            node(0, COMP, duration_us=10),
            node(1, SEND, deps=[0], comm_src=0, comm_dst=1, comm_tag=5, comm_size=777),
            node(2, COLL, data_deps=[0], **reduce),
            node(3, COMP, deps=[2], duration_us=1),
        ],
    )
    write_trace(
        folder / "t.1.et",
        [
            node(10, RECV, comm_src=0, comm_dst=1, comm_tag=5, comm_size=777),
            node(11, COMP, deps=[10], duration_us=20),
            node(12, COLL, deps=[11], **reduce),
        ],
    )


def test_traces_become_delays_and_flows(tmp_path):
    two_ranks(tmp_path)
    table = read_chakra(tmp_path, [4, 9]).validate(10)
    flows = table.is_flow
    assert sorted(table.size_bytes[flows].tolist()) == [500, 500, 500, 500, 777]
    assert set(table.source[flows].tolist()) == {4, 9}
    finish = finish_times(table, flow_ns=100)
    # 10 us, a message, 20 us, what rank 1 adds and what it gathers at once, then 1 us on rank 0
    assert finish.max() == 10_000 + 100 + 20_000 + 100 + 1_000
    assert table.phase_names[table.phase[np.argmax(table.size_bytes)]] == "message"


@pytest.mark.parametrize(
    ("kind", "flows", "total"),
    [(2, 2, 2000), (6, 2, 1000), (7, 2, 1000), (5, 1, 1000), (1, 1, 1000), (9, 4, 32)],
)
def test_collectives_move_what_their_size_says(tmp_path, kind, flows, total):
    two_ranks(tmp_path, {"comm_type": kind, "comm_size": 1000})
    table = read_chakra(tmp_path).validate(2)
    assert table.num_flows == flows + 1
    assert table.total_bytes == total + 777


def test_process_groups_meet_apart(tmp_path):
    for rank in range(4):
        group = "even" if rank % 2 == 0 else "odd"
        write_trace(tmp_path / f"t.{rank}.et", [node(1, COLL, comm_type=0, comm_size=100, pg_name=group)])
    (tmp_path / "groups.json").write_text(json.dumps({"even": [0, 2], "odd": [1, 3]}))
    table = read_chakra(tmp_path, groups=tmp_path / "groups.json").validate(4)
    flows = table.is_flow
    assert (table.source[flows] % 2 == table.target[flows] % 2).all()
    assert table.num_flows == 2 * 4
    with pytest.raises(WorkloadError, match='process group "odd" is not known; known: even'):
        read_chakra(tmp_path, groups={"even": [0, 2]})


def test_operations_take_time_when_none_is_recorded(tmp_path):
    write_trace(tmp_path / "t.0.et", [node(1, COMP, num_ops=2_000_000_000)])
    assert read_chakra(tmp_path, compute_tflops=100.0).delay_ns.tolist() == [20_000]
    assert read_chakra(tmp_path).delay_ns.tolist() == [0]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node(1, COMP, deps=[8])], 't.1.et: node 1 ("n") waits for node 8, which is none'),
        ([node(1, COMP), node(1, COMP)], "t.1.et: two nodes have the same id"),
        ([node(1, COLL, comm_size=4)], 'node 1 ("n") has no attribute comm_type'),
        ([node(1, COLL, comm_type=0, comm_size=4)], "of group all ranks: rank 0 takes no part"),
        (
            [node(1, SEND, comm_dst=0, comm_size=4)],
            "rank 1 sends 1 messages of tag 0 to rank 0, which receives 0",
        ),
        ([node(1, SEND, comm_dst=2, comm_size=4)], "t.1.et: node 1: comm_dst = 2; ranks are 0..1"),
        ([node(1, SEND, comm_dst="x", comm_size=4)], 'comm_dst = "x" is no whole number'),
    ],
)
def test_traces_that_do_not_fit_are_named(tmp_path, nodes, message):
    write_trace(tmp_path / "t.0.et", [node(0, COMP)])
    write_trace(tmp_path / "t.1.et", nodes)
    with pytest.raises(WorkloadError) as caught:
        read_chakra(tmp_path)
    assert message in str(caught.value)


def test_a_damaged_trace_is_named(tmp_path):
    two_ranks(tmp_path)
    data = (tmp_path / "t.0.et").read_bytes()
    refused = 0
    for length in range(len(data)):
        (tmp_path / "t.0.et").write_bytes(data[:length])
        try:
            read_nodes(tmp_path / "t.0.et")
        except WorkloadError:
            refused += 1
    assert refused >= len(data) - 4  # a cut between two nodes leaves a shorter trace


def test_random_bytes_never_raise_anything_else(tmp_path):
    random = np.random.default_rng(5)
    for _ in range(300):
        (tmp_path / "t.0.et").write_bytes(random.bytes(int(random.integers(0, 60))))
        try:
            read_chakra(tmp_path)
        except WorkloadError:
            continue


def test_missing_ranks_are_named(tmp_path):
    with pytest.raises(WorkloadError, match=r"no file named NAME\.RANK\.et is there"):
        trace_files(tmp_path)
    write_trace(tmp_path / "a.0.et", [node(1, COMP)])
    write_trace(tmp_path / "a.2.et", [node(1, COMP)])
    with pytest.raises(WorkloadError, match="the trace of rank 1 is missing, of 3 ranks"):
        trace_files(tmp_path / "a")
    write_trace(tmp_path / "b.0.et", [node(1, COMP)])
    with pytest.raises(WorkloadError, match=r"rank 0 has two traces, a\.0\.et and b\.0\.et"):
        trace_files(tmp_path)
    assert [file.name for file in trace_files(tmp_path / "b")] == ["b.0.et"]


def test_a_path_no_system_can_hold_is_told_in_a_line(tmp_path):
    with pytest.raises(WorkloadError, match="cannot be read: File name too long"):
        trace_files(tmp_path / ("x" * 5000))
