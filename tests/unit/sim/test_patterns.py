"""Permutation, incast, all-to-all and pairs: who sends to whom, and when."""

from collections import Counter

import numpy as np
import pytest

from farstep.sim.tasks import WorkloadError
from farstep.sim.workloads.patterns import all_to_all, derangement, incast, permutation, sendrecv, streams


@pytest.mark.parametrize("count", [2, 3, 10, 1000])
def test_a_derangement_moves_everybody(count):
    drawn = derangement(count, seed=1)
    assert sorted(drawn) == list(range(count))
    assert not (drawn == np.arange(count)).any()


def test_derangements_are_drawn_evenly():
    drawn = Counter(tuple(derangement(4, seed)) for seed in range(1800))
    assert len(drawn) == 9  # all derangements of four
    assert 140 < min(drawn.values()) < max(drawn.values()) < 260  # 200 each, three standard deviations


def test_a_seed_draws_the_same_permutation():
    one, same, other = permutation(64, 10, seed=3), permutation(64, 10, seed=3), permutation(64, 10, seed=4)
    assert one.target.tolist() == same.target.tolist() != other.target.tolist()


def test_a_permutation_uses_the_nics_given():
    table = permutation([9, 4, 7], 10).validate()
    assert sorted(table.source) == sorted(table.target) == [4, 7, 9]


def test_an_incast_has_a_victim_beside_it():
    table = incast(16, 1000, senders=7, target=4, seed=5).validate(16)
    assert table.phase_names == ("incast", "victim")
    senders, victim = table.source[:7].tolist(), (int(table.source[7]), int(table.target[7]))
    assert set(table.target[:7].tolist()) == {4}
    assert victim[1] == 5  # the next rank, in the same rack
    assert len({*senders, 4, *victim}) == 10  # nobody plays two parts


@pytest.mark.parametrize("seed", range(20))
def test_named_senders_leave_the_victim_alone(seed):
    table = incast(8, 1000, senders=[1, 2, 3], target=0, seed=seed).validate(8)
    assert table.source[:3].tolist() == [1, 2, 3]
    assert table.target[3] == 4
    assert table.source[3] in (5, 6, 7)


def test_an_incast_may_name_its_victim_or_have_none():
    assert incast(4, 10, senders=2, victim=False).num_flows == 2
    table = incast(8, 10, senders=[4, 5], victim=(6, 1), victim_bytes=99)
    assert (table.source[2], table.target[2], table.size_bytes[2]) == (6, 1, 99)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"senders": 7}, "senders is 7; 8 ranks allow 1..5"),
        ({"senders": [0, 1]}, "must be different ranks other than the target 0"),
        ({"senders": [9]}, "senders names rank 9; ranks are 0..7"),
        ({"senders": 2, "target": 8}, "target names rank 8; ranks are 0..7"),
        ({"senders": 2, "victim": (1, 9)}, "victim names rank 9; ranks are 0..7"),
    ],
)
def test_an_impossible_incast_is_refused(arguments, message):
    with pytest.raises(WorkloadError) as caught:
        incast(8, 10, **arguments)
    assert message in str(caught.value)


def test_an_all_to_all_keeps_its_window():
    table = all_to_all(12, 100, window=4).validate(12)
    assert table.num_flows == 12 * 11
    pairs = set(zip(table.source.tolist(), table.target.tolist(), strict=True))
    assert len(pairs) == 12 * 11
    roots = np.flatnonzero(np.diff(table.dep_offset) == 0)
    assert Counter(table.source[roots].tolist()) == dict.fromkeys(range(12), 4)
    for task in range(len(table)):
        for before in table.predecessors(task):
            assert table.source[before] == table.source[task]
            assert (table.target[task] - table.target[before]) % 12 == 4


def test_an_all_to_all_stays_in_its_groups():
    table = all_to_all(12, 100, group_size=4)
    assert (table.source // 4 == table.target // 4).all()
    assert table.num_flows == 12 * 3
    with pytest.raises(WorkloadError, match="group_size is 5; it must be at least 2 and divide the 12 ranks"):
        all_to_all(12, 100, group_size=5)


def test_pairs_exchange_messages_one_after_the_other():
    table = sendrecv([5, 6, 7, 8], 10, messages=3).validate(9)
    assert table.num_flows == 12
    assert table.source[:4].tolist() == [5, 7, 6, 8]
    assert table.target[:4].tolist() == [6, 8, 5, 7]
    assert table.predecessors(8).tolist() == [4]
    assert table.tag.max() == 2
    assert sendrecv(4, 10, pairs="opposite", both_ways=False).target.tolist() == [2, 3]
    assert sendrecv(4, 10, pairs=[(3, 0)], both_ways=False).source.tolist() == [3]
    with pytest.raises(WorkloadError, match='pairs is "near"; valid: neighbours, opposite, or a list'):
        sendrecv(4, 10, pairs="near")


def test_streams_go_where_they_are_sent():
    table = streams([0, 1], 2, [10, 20], messages=2).validate(3)
    assert table.target.tolist() == [2, 2, 2, 2]
    assert table.size_bytes.tolist() == [10, 20, 10, 20]
