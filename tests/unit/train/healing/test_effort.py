"""When a newcomer gives up following, as arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farstep.train.healing.effort import (
    DEAR_S,
    HOPELESS_S,
    LAG_STEPS_MAX,
    Effort,
    Progress,
    following_cost,
    patience_s,
)
from farstep.train.healing.line import Status

TICK_S = 0.05


@given(st.integers(1, 30), st.floats(0.0, 20.0), st.data())
def test_a_newcomer_gets_to_the_newest_step_or_dozes(lag: int, pull_s: float, data: st.DataObject) -> None:
    effort = Effort(0.0, pull_s)
    span_s = max(HOPELESS_S, pull_s)
    end_s = (lag + 1) * (span_s + 1.0)
    now_s, lag_steps = 0.0, lag
    while now_s < end_s:
        if effort.is_too_dear(Progress(now_s, lag_steps, 0.0, False), 0.15):
            return
        now_s += span_s / 3
        lag_steps = data.draw(st.integers(1, lag + 3))  # whatever the rates are, it never quite arrives
    pytest.fail("neither ready nor dozing")


@given(st.floats(0.0, 20.0), st.integers(2, 1000))
def test_one_that_comes_closer_in_time_is_let(pull_s: float, lag: int) -> None:
    effort = Effort(0.0, pull_s)
    for number in range(lag):
        now = Progress(number * HOPELESS_S / 2, lag - number, 0.0, False)
        assert not effort.is_too_dear(now, 0.15)


@pytest.mark.parametrize(("cost", "lag", "is_ready"), [(0.2, 0, True), (0.2, 0, False), (0.0, 17, True)])
def test_what_costs_too_much_or_lags_for_long_ends(cost: float, lag: int, is_ready: bool) -> None:
    effort = Effort(0.0)
    assert not effort.is_too_dear(Progress(0.0, lag, cost, is_ready), 0.15)
    assert not effort.is_too_dear(Progress(DEAR_S, lag, cost, is_ready), 0.15)
    assert effort.is_too_dear(Progress(DEAR_S + TICK_S, lag, cost, is_ready), 0.15)


def test_a_good_moment_begins_the_count_anew() -> None:
    effort = Effort(0.0)
    for number in range(40):
        cost = 0.1 if number % 10 == 0 else 0.3
        assert not effort.is_too_dear(Progress(number * DEAR_S / 10, LAG_STEPS_MAX, cost, True), 0.15)


def status(**fields: int) -> Status:
    usual = {"step_time_ns": 50_000_000, "num_steps": 10, "gradient_bytes": 10_000_000}
    return Status(100, 90, 90, False, follow_cost=0, **{**usual, **fields})


def test_following_costs_what_so_many_bytes_of_state_cost() -> None:
    # 20 MB made ten steps longer by 50 ms in total: a gradient of 10 MB makes one longer by 25 ms, half a step.
    assert following_cost(status(excess_ns=50_000_000), 20_000_000) == pytest.approx(0.5)
    # Had they been copies, it were 5 ms a step, however much is sent.
    copies = status(excess_ns=50_000_000, own_ns=50_000_000)
    assert following_cost(copies, 20_000_000) == pytest.approx(0.1)


def test_what_keeping_gradients_costs_is_known_before_anything_has_arrived() -> None:
    # Ten steps became longer by 10 ms each, and hardly anything was sent meanwhile.
    assert following_cost(status(excess_ns=100_000_000), 0) == pytest.approx(0.2)
    assert following_cost(status(excess_ns=100_000_000), 1_000_000) == pytest.approx(0.2)


def test_what_the_copy_has_cost_says_nothing_about_following() -> None:
    effort = Effort(0.0)
    copied = status(excess_ns=900_000_000, own_ns=300_000_000, num_steps=12)
    for told in (status(num_steps=0), copied):
        effort.note_pulled(told, 0)
        assert effort.cost == 0.0
    later = status(excess_ns=950_000_000, own_ns=300_000_000, num_steps=22)
    effort.note_pulled(later, 20_000_000)
    assert effort.cost == pytest.approx(0.5)
    effort.note_pulled(later, 30_000_000)
    assert effort.cost == pytest.approx(0.5), "heard once, counted once"


@pytest.mark.parametrize("missing", ["step_time_ns", "gradient_bytes", "num_steps"])
def test_nothing_is_told_before_enough_is_known(missing: str) -> None:
    told = {"excess_ns": 50_000_000, missing: 0}
    assert following_cost(status(**told), 20_000_000) == 0.0


@given(st.floats(0.1, 1e5), st.floats(0.0, 100.0), st.floats(0.1, 100.0))
def test_any_transfer_is_waited_for_in_the_end(transfer_s: float, step_s: float, takeover_s: float) -> None:
    assert patience_s(takeover_s, step_s, 10 * transfer_s) >= transfer_s * 0.999
    assert patience_s(takeover_s, step_s, 0.0) == max(takeover_s, 3 * step_s)
