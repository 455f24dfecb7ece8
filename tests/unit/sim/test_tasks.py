"""The table of tasks: building, joining, and what is refused."""

import numpy as np
import pytest

from farstep.sim.tasks import TaskBuilder, TaskKind, TaskTable, WorkloadError, concatenate


def two_rounds() -> TaskTable:
    build = TaskBuilder()
    first = build.flows([0, 1], [1, 0], 1000)
    second = build.flows([0, 1], [1, 0], 500, delay_ns=7, phase="second")
    build.after(second, first)
    return build.table()


def test_a_builder_numbers_tasks_in_the_order_they_are_added():
    table = two_rounds().validate(num_nics=2)
    assert table.size_bytes.tolist() == [1000, 1000, 500, 500]
    assert [table.predecessors(task).tolist() for task in range(4)] == [[], [], [0], [1]]
    assert table.phase_names == ("flow", "second")
    assert (table.num_flows, table.total_bytes, table.num_steps) == (4, 3000, 1)


def test_every_column_has_its_type():
    types = {name: column.dtype.name for name, column in two_rounds().columns().items()}
    assert types == {
        "kind": "uint8",
        "source": "int32",
        "target": "int32",
        "size_bytes": "int64",
        "start_ns": "int64",
        "delay_ns": "int64",
        "connection_key": "int64",
        "job": "int32",
        "tag": "int32",
        "phase": "int16",
        "dep_offset": "int64",
        "dep_index": "int32",
    }


def test_many_wait_for_many_through_one_join():
    build = TaskBuilder()
    first = build.flows(np.arange(50), np.arange(50) + 1, 10)
    second = build.flows(np.arange(50), np.arange(50) + 1, 10)
    build.after_all(second, first)
    table = build.table().validate(51)
    assert len(table) == 101
    assert len(table.dep_index) == 100
    assert table.kind[100] == TaskKind.DELAY
    assert table.delay_ns[100] == 0


def test_successors_are_the_predecessors_reversed():
    table = two_rounds()
    offset, index = table.successors()
    assert [index[offset[task] : offset[task + 1]].tolist() for task in range(4)] == [[2], [3], [], []]


def test_joined_tables_keep_their_jobs_and_connections_apart():
    table = TaskTable.from_columns(
        source=[0, 1],
        target=[1, 0],
        size_bytes=5,
        connection_key=[3, -1],
        dep_offset=[0, 0, 1],
        dep_index=[0],
    )
    joined = concatenate([table, table.renamed(job_names=["other"])]).validate()
    assert joined.job.tolist() == [0, 0, 1, 1]
    assert joined.job_names == ("job", "other")
    assert joined.connection_key.tolist() == [3, -1, 7, -1]
    assert joined.dep_index.tolist() == [0, 2]


def test_a_table_joins_a_builder_after_what_is_there():
    build = TaskBuilder(tag=4)
    wait = build.delays([0], 100)
    ids = build.append(two_rounds(), after=wait)
    table = build.table().validate()
    assert [table.predecessors(int(task)).tolist() for task in ids] == [[0], [0], [1], [2]]
    assert set(table.tag.tolist()) == {4}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"target": [1, 9]}, "task 1 (job: NIC 1 -> 9, 5 B) needs a NIC the fabric does not have: it has 4"),
        ({"target": [1, 1]}, "task 1 (job: NIC 1 -> 1, 5 B) sends to itself"),
        ({"size_bytes": [0, 5]}, "task 0 (job: NIC 0 -> 1, 0 B) has no byte to send"),
        ({"kind": [0, 1]}, "task 1 (job: delay of 0 ns on NIC 1) is a delay, and names two NICs"),
        ({"start_ns": [-1, 0]}, "starts outside 0 ns .. one year"),
        ({"job": [0, 1]}, "belongs to a job without a name"),
        ({"dep_offset": [0, 1, 2], "dep_index": [1, 0]}, "waits for itself, through its predecessors"),
        ({"dep_offset": [0, 0, 1], "dep_index": [7]}, "waits for task 7, which is none"),
        ({"dep_offset": [0, 0, 2], "dep_index": [0]}, "dep_offset must rise from 0 to 1"),
    ],
)
def test_a_wrong_task_is_named(columns, message):
    given = {"source": [0, 1], "target": [1, 2], "size_bytes": 5, **columns}
    with pytest.raises(WorkloadError) as caught:
        TaskTable.from_columns(**given).validate(num_nics=4)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"size_byte": 5}, 'no column "size_byte"; columns: kind, '),
        ({"start_ns": [1, 2, 3]}, "column start_ns has shape (3,); it needs 2 values"),
        ({"start_ns": 1.5}, "column start_ns must hold integers, not float64"),
        ({"tag": 2**40}, "column tag must lie in -2147483648..2147483647"),
    ],
)
def test_a_wrong_column_is_named(columns, message):
    with pytest.raises(WorkloadError) as caught:
        TaskTable.from_columns(source=[0, 1], target=[1, 2], size_bytes=5, **columns)
    assert message in str(caught.value)


def test_an_order_that_is_none_of_the_table_is_accepted():
    TaskTable.from_columns(
        source=[0, 1], target=[1, 0], size_bytes=5, dep_offset=[0, 1, 1], dep_index=[1]
    ).validate(2)


def test_nothing_to_do_is_no_workload():
    with pytest.raises(WorkloadError, match="the workload is empty"):
        TaskBuilder().table().validate()
    with pytest.raises(WorkloadError, match="the workload is empty"):
        concatenate([])
