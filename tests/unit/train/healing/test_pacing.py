"""How a source finds out what it may send, on a clock of its own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.train.healing.pacing import CREDIT_STEPS, DEBT_STEPS, Account, Cost, Pacer

MS = 1_000_000


class Run:
    """Steps of some length, which what is sent meanwhile makes longer."""

    def __init__(self, step_ms: float = 50.0, **options: float | None) -> None:
        self.now_ns = 10**9
        self.step_ns = round(step_ms * MS)
        self.pacer = Pacer(now_ns=lambda: self.now_ns, **options)  # type: ignore[arg-type]
        self.pacer.step_ended()

    def step(self, *, longer: float = 1.0, is_followed: bool = False) -> None:
        self.now_ns += int(self.step_ns * longer)
        self.pacer.step_ended(is_followed=is_followed)

    def serve(self, steps: int, ns_per_byte: float, piece: int = 1 << 20) -> tuple[float, int]:
        """Steps in which all is sent that may be; returns their mean length over the usual one, and the bytes."""
        total_ns, sent = 0, 0
        for _ in range(steps):
            began_ns, end_ns, delay_ns = self.now_ns, self.now_ns + self.step_ns, 0
            while self.now_ns < end_ns + delay_ns:
                wait_ns = self.pacer.wait_ns()
                if wait_ns:
                    self.now_ns = min(self.now_ns + wait_ns, end_ns + delay_ns)
                    continue
                self.pacer.spend(piece)
                sent += piece
                delay_ns += round(piece * ns_per_byte)
                self.now_ns += 200_000
            self.pacer.step_ended()
            total_ns += self.now_ns - began_ns
        return total_ns / steps / self.step_ns, sent


@pytest.mark.parametrize("ns_per_byte", [0.5, 2.0, 8.0])
def test_the_rate_settles_where_steps_stay_within_the_bound(ns_per_byte: float) -> None:
    run = Run()
    for _ in range(10):
        run.step()
    run.serve(60, ns_per_byte)
    ratio, sent = run.serve(200, ns_per_byte)
    assert ratio <= 1.15
    assert sent * ns_per_byte >= 0.03 * 200 * run.step_ns, "and most of the bound is used"


def test_a_rate_that_is_set_is_the_upper_limit() -> None:
    run = Run(rate_mbps=80.0)
    for _ in range(10):
        run.step()
    _, sent = run.serve(100, 0.0)
    assert sent == pytest.approx(10e6 * 100 * run.step_ns / 1e9, rel=0.2)
    run.pacer.stand_still(True)
    run.pacer.spend(10_000_000)
    assert run.pacer.wait_ns() >= 900 * MS, "also while nothing is disturbed"


def test_nothing_is_held_back_while_no_step_is_under_way() -> None:
    run = Run(start_mbps=8.0)
    for _ in range(10):
        run.step()
    run.pacer.spend(1 << 20)
    assert run.pacer.wait_ns() > 100 * MS
    run.pacer.stand_still(True)
    assert run.pacer.wait_ns() == 0
    run.pacer.stand_still(False)
    assert run.pacer.wait_ns() == 0, "what was not held back then is not held against it afterwards"


def test_what_following_costs_is_known_after_a_few_steps() -> None:
    run = Run()
    for _ in range(10):
        run.step()
    assert run.pacer.follow_cost == 0.0
    for _ in range(12):
        run.step(longer=1.5, is_followed=True)
    assert run.pacer.follow_cost == pytest.approx(0.5)
    for _ in range(12):
        run.step(longer=1.1, is_followed=True)
    assert run.pacer.follow_cost == pytest.approx(0.1)
    for _ in range(20):  # a rest, in which the run turns out to have longer steps than before
        run.step(longer=1.1)
    for _ in range(12):
        run.step(longer=1.1, is_followed=True)
    assert run.pacer.follow_cost == 0.0


def test_a_millisecond_more_is_no_cost() -> None:
    run = Run(step_ms=5.0)
    for _ in range(10):
        run.step()
    for _ in range(100):
        run.step(longer=1.3, is_followed=True)
    assert run.pacer.follow_cost == 0.0


def test_steps_with_a_follower_are_no_yardstick() -> None:
    run = Run()
    for _ in range(10):
        run.step()
    for _ in range(100):
        run.step(longer=2.0, is_followed=True)
    assert run.pacer.step_ns == 50 * MS


BOUNDS = st.floats(0.01, 1.0)
COSTS = st.floats(0.0, DEBT_STEPS)


@given(BOUNDS, st.lists(COSTS, min_size=1, max_size=300))
def test_the_mean_step_stays_within_the_bound_whatever_a_piece_costs(
    bound: float, costs: list[float]
) -> None:
    account = Account(bound)
    total, largest = 0.0, 0.0
    for number, cost in enumerate(costs, start=1):
        excess = (
            cost if account.is_open() else 0.0
        )  # whoever may send does, and nobody knows beforehand what it costs
        account.note(1.0 + excess, 1.0)
        total += excess
        largest = max(largest, excess)
        assert total <= bound * (number + CREDIT_STEPS) + largest + 1e-9


@given(BOUNDS, COSTS, st.integers(1, 2000))
def test_the_bound_is_used_so_that_healing_goes_on(bound: float, cost: float, num_steps: int) -> None:
    account = Account(bound)
    served = 0
    for _ in range(num_steps):
        is_open = account.is_open()
        served += is_open
        account.note(1.0 + cost * is_open, 1.0)
    assert served >= int(num_steps * bound / (cost + bound))


@given(BOUNDS, st.lists(st.floats(0.01, 1e6), max_size=50))
def test_one_hiccup_holds_healing_up_for_a_while_only(bound: float, steps: list[float]) -> None:
    account = Account(bound)
    for step in steps:
        account.note(step, 1.0)
    for _ in range(int(DEBT_STEPS / bound) + 2):
        account.note(1.0, 1.0)
    assert account.is_open()


def test_an_account_without_bound_is_always_open() -> None:
    account = Account(None)
    account.note(100.0, 1.0)
    assert account.is_open()
    assert not account.is_bounded


@settings(max_examples=25)
@given(step_ms=st.floats(10.0, 100.0), ns_per_byte=st.floats(1.0, 20.0), piece=st.integers(1 << 20, 8 << 20))
def test_steps_stay_within_the_bound_and_the_least_is_sent(
    step_ms: float, ns_per_byte: float, piece: int
) -> None:
    run = Run(step_ms, least_mbps=1.0)
    for _ in range(10):
        run.step()
    num_steps = 150
    began_ns = run.now_ns
    ratio, sent = run.serve(num_steps, ns_per_byte, piece)
    most_of_a_piece = (
        8 * piece * ns_per_byte / run.step_ns
    )  # a burst of them may be under way when a step is over
    assert ratio <= 1.10 + (most_of_a_piece + 1) / num_steps + 0.01
    assert sent >= 1e6 / 8 * (run.now_ns - began_ns) / 1e9 * 0.8 - piece


@given(st.floats(1.0, 1000.0), st.integers(1 << 10, 8 << 20))
def test_an_overdrawn_account_leaves_the_least_rate(least_mbps: float, piece: int) -> None:
    run = Run(follow_slowdown=0.1, least_mbps=least_mbps, start_mbps=10_000.0)
    for _ in range(10):
        run.step()
    run.pacer.spend(1)
    run.now_ns += 30 * run.step_ns
    run.pacer.step_ended(is_engaged=True, is_followed=True)  # so long that both accounts are overdrawn
    due_ns = run.now_ns
    run.pacer.spend(piece)
    waits_ns = run.pacer.gradient_wait_ns(is_new=True)
    assert waits_ns == pytest.approx(piece * 8e3 / least_mbps, rel=1e-6, abs=2)
    run.now_ns = due_ns + waits_ns
    assert run.pacer.gradient_wait_ns(is_new=True) == 0


def test_a_gradient_is_sent_at_once_while_the_account_has_room() -> None:
    run = Run(follow_slowdown=0.1)
    for _ in range(10):
        run.step()
    run.pacer.spend(100 << 20)
    assert run.pacer.gradient_wait_ns(is_new=True) == 0
    run.step(longer=3.0, is_followed=True)
    assert run.pacer.gradient_wait_ns(is_new=True) > 0
    for _ in range(25):
        run.step(is_followed=True)
    assert run.pacer.gradient_wait_ns(is_new=True) == 0


def test_without_bound_gradients_are_never_held_back() -> None:
    run = Run(rate_mbps=1.0, follow_slowdown=None)
    for _ in range(10):
        run.step()
    run.pacer.spend(100 << 20)
    run.step(longer=9.0, is_followed=True)
    assert run.pacer.gradient_wait_ns(is_new=False) == 0


def test_sources_pause_at_the_same_steps_to_learn_how_long_steps_are() -> None:
    run = Run()
    for _ in range(10):
        run.step()
    paused = []
    for number in range(200):
        run.now_ns += int(run.step_ns * 1.3)
        run.pacer.step_ended(number, is_engaged=True, own_ns=int(run.step_ns * 0.1))
        if run.pacer.wait_ns() >= 250 * MS:
            paused.append(number)
    assert [number for number in paused if number % 48 < 4] == paused
    assert {0, 1, 2, 3, 48, 49, 50, 51, 96, 144} <= set(paused)
    assert run.pacer.step_ns == pytest.approx(1.2 * 50 * MS), "without the copies made meanwhile"


def test_what_healing_has_cost_is_counted_until_it_ends() -> None:
    run = Run()
    for _ in range(10):
        run.step()
    for _ in range(5):
        run.now_ns += 60 * MS
        run.pacer.step_ended(is_engaged=True, own_ns=4 * MS)
    assert run.pacer.cost == Cost(50 * MS, 20 * MS, 5)
    run.step()
    run.step()
    assert run.pacer.cost == Cost(0, 0, 0)
