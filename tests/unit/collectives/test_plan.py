"""Plans: chunks, turns, freshness, and that both ends of a link derive the same order."""

import pytest

from farstep.collectives.plan import Placement, compile_plan
from farstep.collectives.schedule import (
    Action,
    consecutive,
    hierarchical_all_reduce,
    pairwise_all_to_all,
    recursive_doubling_all_reduce,
    ring_all_reduce,
)


def plans_of(make, size, **options):
    return [
        compile_plan(make(rank), rank, itemsize_bytes=4, chunk_bytes=64, **options) for rank in range(size)
    ]


@pytest.mark.parametrize("placement", list(Placement))
@pytest.mark.parametrize("size", [2, 3, 6])
def test_both_ends_of_a_link_derive_the_same_order(size, placement):
    sites = [list(range(size // 2)), list(range(size // 2, size))]
    for make in (
        lambda rank: ring_all_reduce(size, 1000, involving=rank),
        lambda rank: hierarchical_all_reduce(sites, 1000, involving=rank),
    ):
        plans = plans_of(make, size, placement=placement)
        for rank, plan in enumerate(plans):
            for peer, link in plan.links.items():
                other = plans[peer].links[rank]
                sent = [(a.length_bytes, a.action, a.is_placed, a.offset_bytes) for a in link.sends]
                received = [(a.length_bytes, a.action, a.is_placed, a.offset_bytes) for a in other.receives]
                assert sent == received
                assert link.num_placed_sends == len(other.placed_offsets_bytes)
                for access in link.sends:
                    if access.is_placed:
                        base = other.placed_offsets_bytes[access.entry]
                        assert base + access.entry_offset_bytes == access.offset_bytes


def test_turns_number_the_accesses_of_each_chunk():
    plan = plans_of(lambda rank: ring_all_reduce(3, 100, involving=rank), 3, placement=Placement.DIRECT)[1]
    for number, accesses in enumerate(plan.next_access):
        assert [access.turn for access in accesses] == list(range(len(accesses)))
        assert all(access.chunk == number for access in accesses)
        assert len({access.offset_bytes for access in accesses}) == 1


def test_only_what_was_not_received_to_is_read_from_the_source():
    plan = plans_of(lambda rank: ring_all_reduce(3, 99, involving=rank), 3, placement=Placement.DIRECT)[0]
    for accesses in plan.next_access:
        received = False
        for access in accesses:
            assert access.is_fresh == (not received)
            received = received or not access.is_send


def test_chunks_are_no_longer_than_asked_for():
    plan = plans_of(lambda rank: ring_all_reduce(2, 1001, involving=rank), 2, placement=Placement.EAGER)[0]
    link = plan.links[1]
    assert max(access.length_bytes for access in link.sends) == 64
    assert sum(access.length_bytes for access in link.sends) == 4 * 1001
    assert [access.action for access in link.receives][:1] == [Action.REDUCE_LEFT]


def test_separate_inputs_are_always_read_from_the_source():
    schedule = pairwise_all_to_all([5, 6, 7], [5, 1, 2], 0)
    plan = compile_plan(schedule, 0, itemsize_bytes=4, chunk_bytes=8, placement=Placement.DIRECT)
    assert all(access.is_fresh for link in plan.links.values() for access in link.sends)
    assert consecutive([5, 6, 7])[2].offset * 4 == plan.links[2].sends[0].offset_bytes


def test_schedules_that_overwrite_what_they_send_need_eager_placement():
    schedule = recursive_doubling_all_reduce(2, 10)
    with pytest.raises(ValueError, match=r"recursive doubling all-reduce.*eager"):
        compile_plan(schedule, 0, itemsize_bytes=4, chunk_bytes=64, placement=Placement.DIRECT)
