"""The held-out loss, added up from what ranks measure."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from farstep.train.held_out import HeldOutLosses, shares_of


@given(num_shares=st.integers(1, 20), num_seats=st.integers(1, 25))
def test_the_shares_of_all_seats_are_all_shares(num_shares: int, num_seats: int):
    dealt = [share for seat in range(num_seats) for share in shares_of(seat, num_seats, num_shares)]
    assert sorted(dealt) == list(range(num_shares))


def test_the_mean_does_not_depend_on_who_was_first():
    parts = {0: (0.1, 3), 1: (0.2, 3), 2: (0.3, 2)}
    means = set()
    for order in itertools.permutations(parts):
        losses = HeldOutLosses(3)
        for rank in order:
            assert losses.take_complete([0, 1, 2]) == []
            losses.add(rank, 10, {rank: parts[rank]})
        ((step, measured),) = losses.take_complete([0, 1, 2])
        assert (step, measured.windows) == (10, 8)
        means.add(measured.loss)
    assert len(means) == 1


def test_what_a_lost_rank_owed_is_not_waited_for():
    losses = HeldOutLosses(3)
    losses.add(0, 10, {0: (1.0, 1)})
    losses.add(1, 10, {1: (3.0, 1)})
    assert losses.take_complete([0, 1, 2]) == []
    ((_, measured),) = losses.take_complete([0, 1])
    assert (measured.windows, measured.loss) == (2, 2.0)
    losses.add(2, 10, {2: (5.0, 1)})  # too late
    assert losses.take_complete([0, 1]) == []


def test_a_rank_that_is_past_a_measurement_is_not_waited_for():
    losses = HeldOutLosses(2)
    losses.add(0, 10, {0: (1.0, 1)})
    losses.add(1, 20, {1: (4.0, 1)})  # it came back after step 10
    ((step, measured),) = losses.take_complete([0, 1])
    assert (step, measured.windows) == (10, 1)
    losses.add(0, 20, {0: (2.0, 1)})
    ((step, measured),) = losses.take_complete([0, 1])
    assert (step, measured.loss) == (20, 3.0)
