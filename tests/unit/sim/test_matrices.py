"""Traffic matrices of htsim."""

import lzma

import pytest

from farstep.sim.tasks import WorkloadError
from farstep.sim.workloads.matrices import read_matrix

CHAIN = """Nodes 8
Connections 4
Triggers 2
0->1 id 1 start 1500 size 100000 send_done_trigger 1
2->3 id 2 start 0 size 5 recv_done_trigger 2
4->5 id 3 start 0 size 7 send_done_trigger 2

1->6 id 4 trigger 1 size 9
5->7 id 5 trigger 2 size 9
trigger id 1 oneshot
trigger id 2 barrier 2
""".replace("Connections 4", "Connections 5")


def test_a_matrix_is_read_as_it_is(tmp_path):
    (tmp_path / "chain.cm").write_text(CHAIN)
    table = read_matrix(tmp_path / "chain.cm").validate(8)
    assert table.source.tolist() == [0, 2, 4, 1, 5]
    assert table.size_bytes.tolist() == [100_000, 5, 7, 9, 9]
    assert table.start_ns.tolist() == [2, 0, 0, 0, 0]  # picoseconds, rounded
    assert [table.predecessors(task).tolist() for task in range(5)] == [[], [], [], [0], [1, 2]]
    assert table.connection_key.tolist() == [0, 1, 2, 3, 4]
    assert table.job_names == ("chain",)


def test_a_compressed_matrix_is_the_same_on_the_nics_given(tmp_path):
    (tmp_path / "chain.cm.xz").write_bytes(lzma.compress(CHAIN.encode()))
    table = read_matrix(tmp_path / "chain.cm.xz", [10, 11, 12, 13, 14, 15, 16, 17])
    assert table.target.tolist() == [11, 13, 15, 16, 17]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0->1 id 1 start 0", "x.cm:2: a flow needs a size, and a start or a trigger"),
        ("0->1 id 1 start 0 trigger 3 size 5", "a flow needs a size, and a start or a trigger"),
        ("0->1 id 1 start -5 size 5", 'x.cm:2: start = "-5": must be a whole number'),
        ("0->1 id 1 strat 0 size 5", '"strat" is not known; valid: id, prio, '),
        ("0->1 id 1 start 0 size", '"size" has no value'),
        ("0->x start 0 size 5", 'target = "x": must be a whole number'),
        ("0->4 start 0 size 5", "node 4 is used, of 4 nodes"),
        ("0->1 trigger 3 size 5", "flow 1 waits for trigger 3, which no flow fires"),
        ("0->1 start 0 size 5 send_done_trigger 3", "trigger 3 is fired by a flow, and not listed"),
        ("trigger id 1 multishot", 'trigger kind "multishot" is not known; valid: oneshot, barrier COUNT'),
        ("Connections 3", "says Connections 3, and lists 0"),
        ("failure 3", '"failure 3" is not known; a flow reads: '),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    (tmp_path / "x.cm").write_text(f"Nodes 4\n{line}\n")
    with pytest.raises(WorkloadError) as caught:
        read_matrix(tmp_path / "x.cm")
    assert message in str(caught.value)


def test_a_file_that_is_no_matrix_is_named(tmp_path):
    (tmp_path / "x.cm").write_bytes(b"\xff\xfe")
    (tmp_path / "x.cm.xz").write_bytes(b"plain")
    for name in ("x.cm", "x.cm.xz", "none.cm"):
        with pytest.raises(WorkloadError, match=rf"{name}: "):
            read_matrix(tmp_path / name)
