"""What counts as stuck, and what does not."""

import math

import pytest

from farstep.membership.beacon import Beacon

S = 1_000_000_000


class Loop:
    """A training loop on a clock of its own."""

    def __init__(self, stall_s: float = 2.0) -> None:
        self.now_ns = 0
        self.beacon = Beacon(stall_s, clock=lambda: self.now_ns)

    def spend(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)

    def step(self, own_s: float = 0.02, waited_s: float = 0.01, pause_s: float = 0.001) -> None:
        self.beacon.begin_step()
        self.spend(own_s)
        with self.beacon.resting():
            self.spend(waited_s)
        self.beacon.end_step()
        self.spend(pause_s)

    @property
    def stuck_s(self) -> float | None:
        stuck_ns = self.beacon.stuck_ns(self.now_ns)
        return None if stuck_ns is None else stuck_ns / S


def trained(steps: int = 20, **more: float) -> Loop:
    loop = Loop()
    for _ in range(steps):
        loop.step(**more)
    return loop


def test_thread_is_stuck_in_a_step_after_the_least_time():
    loop = trained()
    loop.beacon.begin_step()
    loop.spend(2.0)
    assert loop.stuck_s is None
    loop.spend(0.5)
    assert loop.stuck_s == pytest.approx(0.5)
    loop.beacon.end_step()
    assert loop.stuck_s is None


def test_long_steps_have_more_time():
    loop = trained(own_s=3.0, waited_s=5.0)
    loop.beacon.begin_step()
    loop.spend(29.0)
    assert loop.stuck_s is None
    loop.spend(2.0)
    assert loop.stuck_s == pytest.approx(1.0)


def test_who_waits_for_others_is_never_stuck():
    loop = trained()
    loop.beacon.begin_step()
    loop.spend(0.02)
    with loop.beacon.resting():
        loop.spend(1e6)
        assert loop.stuck_s is None
    assert loop.stuck_s is None  # counted anew from here
    loop.spend(3.0)
    assert loop.stuck_s == pytest.approx(1.0)


def test_first_steps_take_as_long_as_they_like():
    loop = Loop()
    loop.spend(1000.0)
    assert loop.stuck_s is None
    for _ in range(3):
        loop.beacon.begin_step()
        loop.spend(300.0)
        assert loop.stuck_s is None
        loop.beacon.end_step()
    loop = trained()
    loop.beacon.forget()  # it was given up and comes back
    loop.beacon.begin_step()
    loop.spend(300.0)
    assert loop.stuck_s is None


def test_evaluation_between_steps_has_time_after_the_first_one():
    loop = trained()
    loop.spend(40.0)
    assert loop.stuck_s == pytest.approx(40.0 - 2.0 + 0.001)
    loop.step()
    loop.spend(110.0)
    assert loop.stuck_s is None
    loop.spend(20.0)
    assert loop.stuck_s is not None


def test_deadlock_between_steps_is_found():
    loop = trained()
    loop.spend(5.0)
    assert loop.stuck_s == pytest.approx(3.001)


def test_nobody_is_suspected_if_the_least_time_is_endless():
    loop = Loop(stall_s=math.inf)
    for _ in range(20):
        loop.step()
    loop.spend(1e6)
    assert loop.stuck_s is None
