"""How a source finds out what it may send, on a clock of its own."""

import pytest

from farstep.train.healing.pacing import Pacer

MS = 1_000_000


class Run:
    """Steps of some length, which what is sent meanwhile makes longer."""

    def __init__(self, step_ms: float = 50.0, **options: float | None) -> None:
        self.now_ns = 10**9
        self.step_ns = step_ms * MS
        self.pacer = Pacer(now_ns=lambda: self.now_ns, **options)  # type: ignore[arg-type]
        self.pacer.step_ended()

    def step(self, *, longer: float = 1.0, is_followed: bool = False) -> None:
        self.now_ns += int(self.step_ns * longer)
        self.pacer.step_ended(is_followed=is_followed)

    def serve(self, steps: int, ns_per_byte: float, piece: int = 1 << 20) -> tuple[float, int]:
        """Steps in which all is sent that may be; returns their mean length over the usual one, and the bytes."""
        total_ns, sent = 0, 0
        for _ in range(steps):
            began_ns, end_ns, delay_ns = self.now_ns, self.now_ns + self.step_ns, 0.0
            while self.now_ns < end_ns + delay_ns:
                wait_ns = self.pacer.wait_ns()
                if wait_ns:
                    self.now_ns = int(min(self.now_ns + wait_ns, end_ns + delay_ns))
                    continue
                self.pacer.spend(piece)
                sent += piece
                delay_ns += piece * ns_per_byte
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


def test_a_fixed_rate_is_kept_whatever_steps_do() -> None:
    run = Run(rate_mbps=80.0)
    for _ in range(10):
        run.step()
    _, sent = run.serve(100, 0.0)
    assert sent == pytest.approx(10e6 * 100 * run.step_ns / 1e9, rel=0.2)


def test_nothing_is_held_back_while_no_step_is_under_way() -> None:
    run = Run(start_mbps=8.0)
    for _ in range(10):
        run.step()
    run.pacer.spend(1 << 20)
    assert run.pacer.wait_ns() > 500 * MS
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
