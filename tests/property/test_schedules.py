"""Every schedule against the mathematical definition, for 1 to 17 ranks and uneven lengths.

Elements are strings that spell out the reduction, such as ``((0+1)+2)``: equal strings mean that floating
point would have given equal bits, whatever the values.
"""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.collectives import schedule as sched
from farstep.collectives.schedule import Action, Range, Schedule

SIZES = range(1, 18)
LENGTHS = (0, 1, 3, 16, 37)


def spell(left: str, right: str) -> str:
    return f"({left}+{right})"


def vectors(size: int, length: int) -> list[list[str]]:
    return [[f"{rank}.{index}" for index in range(length)] for rank in range(size)]


def terms(text: str) -> list[str]:
    return sorted(re.findall(r"\d+\.\d+", text))


def blocks_of(size: int, length: int) -> tuple[Range, ...]:
    """Uneven blocks: some empty, some longer."""
    return sched.consecutive((length + 3 * rank) % (length + 2) if length else 0 for rank in range(size))


def outcomes(schedule: Schedule, inputs, work=None):
    """The step-by-step result and those of a few random orders, which must all agree."""
    expected = sched.execute(schedule, inputs, spell, work=work)
    yield expected
    for seed in range(2):
        yield sched.execute_interleaved(schedule, inputs, spell, seed=seed, work=work)
        if schedule.is_zero_copy:
            yield sched.execute_interleaved(schedule, inputs, spell, seed=seed, work=work, zero_copy=True)


def check_all_reduce(schedule: Schedule, size: int, length: int) -> None:
    for result in outcomes(schedule, vectors(size, length)):
        for rank in range(size):
            assert result[rank] == result[0], "ranks would hold different bits"
        for index in range(length):
            assert terms(result[0][index]) == sorted(f"{rank}.{index}" for rank in range(size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", LENGTHS)
def test_ring_all_reduce_sums_every_rank_once(size, length):
    check_all_reduce(sched.ring_all_reduce(size, length), size, length)
    check_all_reduce(sched.ring_all_reduce(size, length, members=list(reversed(range(size)))), size, length)


@pytest.mark.parametrize("size", SIZES)
def test_recursive_doubling_sums_every_rank_once(size):
    check_all_reduce(sched.recursive_doubling_all_reduce(size, 3), size, 3)


@pytest.mark.parametrize(
    "counts",
    [(1,), (3,), (1, 1), (2, 2), (3, 2), (1, 4), (2, 3, 1), (4, 4, 4), (5, 3, 7, 2), (1, 1, 1, 1, 1)],
)
@pytest.mark.parametrize("length", LENGTHS)
def test_hierarchical_all_reduce_sums_every_rank_once(counts, length):
    sites, first = [], 0
    for count in counts:
        sites.append(list(range(first, first + count)))
        first += count
    check_all_reduce(sched.hierarchical_all_reduce(sites, length), first, length)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 60), st.randoms())
@settings(max_examples=60, deadline=None)
def test_hierarchical_all_reduce_holds_for_any_sites(counts, length, shuffler):
    ranks = list(range(sum(counts)))
    shuffler.shuffle(ranks)
    sites, first = [], 0
    for count in counts:
        sites.append(ranks[first : first + count])
        first += count
    check_all_reduce(sched.hierarchical_all_reduce(sites, length), len(ranks), length)


@pytest.mark.parametrize("counts", [(2, 2), (3, 2), (4, 4), (1, 5)])
def test_hierarchical_all_reduce_sends_one_copy_out_of_each_site(counts):
    length = 240
    sites = [list(range(counts[0])), list(range(counts[0], sum(counts)))]
    schedule = sched.hierarchical_all_reduce(sites, length)
    site_of = {rank: index for index, site in enumerate(sites) for rank in site}
    for site in range(2):
        crossing = sum(t.length for t in schedule.transfers if site_of[t.source] == site != site_of[t.target])
        assert crossing == length


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", LENGTHS)
def test_reduce_scatter_leaves_each_rank_its_block(size, length):
    blocks = blocks_of(size, length)
    total = blocks[-1].stop
    for result in outcomes(sched.ring_reduce_scatter(blocks), vectors(size, total)):
        for rank, block in enumerate(blocks):
            for index in range(block.offset, block.stop):
                assert terms(result[rank][index]) == sorted(f"{source}.{index}" for source in range(size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("make", [sched.ring_all_gather, sched.direct_all_gather])
def test_all_gather_hands_everyone_every_block(size, length, make):
    blocks = blocks_of(size, length)
    total = blocks[-1].stop
    whole = [f"{rank}.{index}" for rank, block in enumerate(blocks) for index in range(block.length)]
    inputs = []
    for block in blocks:
        vector = ["?"] * total
        vector[block.offset : block.stop] = whole[block.offset : block.stop]
        inputs.append(vector)
    for result in outcomes(make(blocks), inputs):
        assert result == [whole] * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [sched.tree_broadcast, sched.chain_broadcast])
def test_broadcast_copies_the_root(size, make):
    for root in {0, size // 2, size - 1}:
        for result in outcomes(make(size, 3, root), vectors(size, 3)):
            assert result == [vectors(size, 3)[root]] * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [sched.tree_reduce, sched.ring_reduce])
def test_reduce_sums_every_rank_once_at_the_root(size, make):
    length = 19
    for root in {0, size // 2, size - 1}:
        seen = []
        for result in outcomes(make(size, length, root), vectors(size, length)):
            seen.append(result[root])
            for index in range(length):
                assert terms(result[root][index]) == sorted(f"{rank}.{index}" for rank in range(size))
        assert all(result == seen[0] for result in seen)


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all_transposes_blocks(size):
    lengths = [[(3 * source + target) % 4 for target in range(size)] for source in range(size)]
    schedule = sched.all_to_all(lengths)
    inputs = [
        [f"{source}>{target}.{k}" for target in range(size) for k in range(lengths[source][target])]
        for source in range(size)
    ]
    work = []
    for target in range(size):
        vector = []
        for source in range(size):
            own = source == target
            vector += [f"{source}>{target}.{k}" if own else "?" for k in range(lengths[source][target])]
        work.append(vector)
    expected = [
        [f"{source}>{target}.{k}" for source in range(size) for k in range(lengths[source][target])]
        for target in range(size)
    ]
    for result in outcomes(schedule, inputs, work):
        assert result == expected
    for rank in range(size):
        column = [lengths[source][rank] for source in range(size)]
        part = sched.pairwise_all_to_all(lengths[rank], column, rank)
        assert [(t.target, t.source_offset, t.length) for t in part.sent_by(rank)] == [
            (t.target, t.source_offset, t.length) for t in schedule.sent_by(rank)
        ]
        assert [(t.source, t.target_offset, t.length) for t in part.received_by(rank)] == [
            (t.source, t.target_offset, t.length) for t in schedule.received_by(rank)
        ]


@pytest.mark.parametrize("size", SIZES)
def test_gather_and_scatter_are_inverse(size):
    blocks = blocks_of(size, 5)
    total = blocks[-1].stop
    whole = [str(index) for index in range(total)]
    parts = [whole[block.offset : block.stop] for block in blocks]
    for root in {0, size - 1}:
        work = [["?"] * max(total, 1) for _ in range(size)]
        work[root][blocks[root].offset : blocks[root].stop] = parts[root]
        for result in outcomes(sched.gather(blocks, root), parts, work):
            assert result[root][:total] == whole
        inputs = [whole if rank == root else [] for rank in range(size)]
        work = [["?"] * block.length for block in blocks]
        work[root] = parts[root]
        for result in outcomes(sched.scatter(blocks, root), inputs, work):
            assert result == parts


@pytest.mark.parametrize("size", SIZES)
def test_barrier_lets_nobody_go_before_all_have_come(size):
    schedule = sched.dissemination_barrier(size)
    inputs = [[1 << rank] for rank in range(size)]
    for seed in range(3):
        result = sched.execute_interleaved(schedule, inputs, lambda a, b: a | b, seed=seed)
        assert result == [[(1 << size) - 1]] * size


def every_schedule(size: int) -> list[Callable[[int | None], Schedule]]:
    blocks = blocks_of(size, 9)
    sites = [list(range(size // 2)), list(range(size // 2, size))] if size > 1 else [[0]]
    lengths = [[(a + b) % 3 for b in range(size)] for a in range(size)]
    root = size // 3
    return [
        lambda r: sched.ring_all_reduce(size, 50, involving=r),
        lambda r: sched.recursive_doubling_all_reduce(size, 5, involving=r),
        lambda r: sched.hierarchical_all_reduce(sites, 50, involving=r),
        lambda r: sched.ring_reduce_scatter(blocks, involving=r),
        lambda r: sched.ring_all_gather(blocks, involving=r),
        lambda r: sched.direct_all_gather(blocks, involving=r),
        lambda r: sched.tree_broadcast(size, 5, root, involving=r),
        lambda r: sched.chain_broadcast(size, 5, root, involving=r),
        lambda r: sched.tree_reduce(size, 5, root, involving=r),
        lambda r: sched.ring_reduce(size, 50, root, involving=r),
        lambda r: sched.all_to_all(lengths, involving=r),
        lambda r: sched.gather(blocks, root, involving=r),
        lambda r: sched.scatter(blocks, root, involving=r),
        lambda r: sched.dissemination_barrier(size, involving=r),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_the_part_of_one_rank_agrees_with_the_whole(size):
    for make in every_schedule(size):
        whole = make(None)
        for rank in range(size):
            part = make(rank)
            assert part.sent_by(rank) == whole.sent_by(rank)
            assert part.received_by(rank) == whole.received_by(rank)


@pytest.mark.parametrize("size", SIZES)
def test_ranges_on_one_rank_are_equal_or_disjoint(size):
    for make in every_schedule(size):
        schedule = make(None)
        for rank in range(size):
            sent = {(t.source_offset, t.length) for t in schedule.sent_by(rank)}
            received = {(t.target_offset, t.length) for t in schedule.received_by(rank)}
            spaces = [sent, received] if schedule.separate_input else [sent | received]
            for ranges in spaces:
                ordered = sorted(ranges)
                assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(ordered))


@pytest.mark.parametrize("size", SIZES)
def test_a_transfer_completes_when_and_only_when_all_ranks_are_in(size):
    sites = [list(range(size // 3)), list(range(size // 3, size))] if size > 2 else [list(range(size))]
    for schedule in (
        sched.ring_all_reduce(size, 20),
        sched.recursive_doubling_all_reduce(size, 2),
        sched.hierarchical_all_reduce(sites, 40),
        sched.tree_reduce(size, 2, size // 2),
        sched.ring_reduce(size, 20, size // 2),
    ):
        for last in range(len(schedule.transfers)):
            t = schedule.transfers[last]
            if t.action is not Action.COPY and t.step != schedule.transfers[last - 1].step:
                check_completion(schedule, t.step)


def check_completion(schedule: Schedule, step: int) -> None:
    until = tuple(t for t in schedule.transfers if t.step <= step)
    length = max(t.target_offset + t.length for t in schedule.transfers)
    result = sched.execute(replace(schedule, transfers=until), vectors(schedule.size, length), spell)
    for t in until:
        if t.step == step and t.action is not Action.COPY:
            is_complete = len(terms(result[t.target][t.target_offset])) == schedule.size
            assert t.completes == is_complete, t


def test_overwriting_too_early_is_noticed():
    schedule = sched.recursive_doubling_all_reduce(4, 2)

    def run_in_many_orders():
        for seed in range(50):
            sched.execute_interleaved(schedule, vectors(4, 2), spell, seed=seed, zero_copy=True)

    with pytest.raises(sched.HazardError):
        run_in_many_orders()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sched.split_evenly(4, 0), "parts is 0"),
        (lambda: sched.split_evenly(-1, 2), "length is -1"),
        (lambda: sched.tree_broadcast(3, 1, 3), "root is 3"),
        (lambda: sched.ring_all_reduce(3, 1, members=[0, 1, 1]), "twice"),
        (lambda: sched.ring_all_reduce(3, 1, members=[0, 1]), "all 3 ranks"),
        (lambda: sched.hierarchical_all_reduce([[0], []], 4), "no ranks"),
        (lambda: sched.all_to_all([[1], [1, 2]]), r"lengths\[0\]"),
    ],
)
def test_wrong_arguments_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
