"""Laws of workloads: whatever the numbers, tables are sound and carry the bytes they must."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.sim.tasks import TaskTable, concatenate
from farstep.sim.workloads.collectives import collective, hierarchical_all_reduce
from farstep.sim.workloads.jobs import Placer, repeat
from farstep.sim.workloads.patterns import all_to_all, incast, permutation
from farstep.sim.workloads.training import TrainingPlan, training_steps

SMALL = st.integers(1, 4)


def received(table: TaskTable) -> np.ndarray:
    """Bytes each NIC receives."""
    return np.bincount(table.target, weights=table.size_bytes).astype(int)


@given(size=st.integers(2, 9), size_bytes=st.integers(1, 5_000))
def test_a_ring_all_reduce_brings_every_rank_all_it_lacks(size, size_bytes):
    table = collective("all_reduce", size, size_bytes).validate(size)
    blocks = [size_bytes // size + (rank < size_bytes % size) for rank in range(size)]
    # From its left neighbour: parts of all sums but the neighbour's own, then all results but the rank's own.
    expected = [2 * size_bytes - blocks[rank - 1] - blocks[rank] for rank in range(size)]
    assert np.bincount(table.target, weights=table.size_bytes, minlength=size).tolist() == expected


@given(groups=st.lists(st.integers(1, 4), min_size=1, max_size=4), size_bytes=st.integers(20, 3_000))
def test_across_groups_go_as_few_bytes_as_can_be(groups, size_bytes):
    if sum(groups) < 2:
        return
    bounds = np.cumsum([0, *groups])
    members = [np.arange(low, high) for low, high in itertools.pairwise(bounds)]
    table = hierarchical_all_reduce(members, size_bytes).validate(sum(groups))
    group_of = np.repeat(np.arange(len(groups)), groups)
    crosses = group_of[table.source] != group_of[table.target]
    assert int(table.size_bytes[crosses].sum()) == 2 * (len(groups) - 1) * size_bytes


@given(size=st.integers(2, 40), window=st.integers(1, 50))
def test_an_all_to_all_sends_each_block_once(size, window):
    table = all_to_all(size, 7, window=window).validate(size)
    assert len(set(zip(table.source.tolist(), table.target.tolist(), strict=True))) == size * (size - 1)
    assert (received(table) == 7 * (size - 1)).all()


@given(count=st.integers(4, 60), seed=st.integers(0, 2**31), data=st.data())
def test_an_incast_gives_everybody_one_part(count, seed, data):
    senders = data.draw(st.integers(1, count - 3))
    target = data.draw(st.integers(0, count - 1))
    table = incast(count, 5, senders=senders, target=target, seed=seed).validate(count)
    ends = [*table.source.tolist(), target, int(table.target[-1])]
    assert len(set(ends)) == senders + 3


@settings(max_examples=60, deadline=None)
@given(
    tensor=SMALL, pipeline=SMALL, data=SMALL, micro_batches=SMALL, layers_per_stage=SMALL, steps=st.integers(1, 2),
    flows=st.tuples(*[st.sampled_from([0, 1000])] * 3), expert=st.booleans(),
)  # fmt: skip
def test_training_steps_are_sound_and_carry_their_bytes(
    tensor, pipeline, data, micro_batches, layers_per_stage, steps, flows, expert
):
    plan = TrainingPlan(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        expert=data if expert else 1,
        layers=layers_per_stage * pipeline,
        micro_batches=micro_batches,
        buckets=layers_per_stage,
        steps=steps,
        tensor_bytes=flows[0],
        pipeline_bytes=flows[1],
        gradient_bytes=flows[2],
        expert_bytes=10 if expert else 0,
    )
    ranks = plan.num_ranks
    table = training_steps(ranks, plan).validate(ranks)
    passes = steps * micro_batches * 2
    expected = passes * layers_per_stage * ranks // tensor * 2 * (tensor - 1) * flows[0]
    expected += passes * (ranks - ranks // pipeline) * flows[1]
    expected += steps * ranks // data * 2 * (data - 1) * flows[2]
    expected += passes * layers_per_stage * ranks * (data - 1) * 2 * 10 if expert else 0
    assert table.total_bytes == expected
    assert table.num_steps == steps


@given(times=st.integers(1, 4), barrier=st.booleans(), size=st.integers(2, 8), seed=st.integers(0, 99))
def test_repetition_multiplies_and_stays_sound(times, barrier, size, seed):
    once = permutation(size, 100, seed=seed)
    table = repeat(once, times, barrier=barrier).validate(size)
    assert table.num_flows == times * size
    assert (np.bincount(table.tag[table.is_flow]) == size).all()
    joined = concatenate([table, once, table]).validate(size)
    assert joined.total_bytes == (2 * times + 1) * size * 100


@given(
    racks=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    policies=st.lists(st.sampled_from(["packed", "spread", "random"]), min_size=1, max_size=4),
    data=st.data(),
)
def test_no_nic_serves_two_jobs(racks, policies, data):
    placer = Placer(np.repeat(np.arange(len(racks)), racks))
    taken: list[int] = []
    for policy in policies:
        if not placer.num_free:
            break
        count = data.draw(st.integers(1, placer.num_free))
        taken += placer.place(count, policy).tolist()
    assert len(set(taken)) == len(taken) <= sum(racks)
