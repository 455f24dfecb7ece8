"""Timers that epoll can wait for."""

import select
import time

from farstep.lab.timer import Timer, reduce_timer_slack


def test_a_timer_expires_at_its_instant_and_not_before():
    reduce_timer_slack()
    timer = Timer()
    for wait_ns in (0, 300_000, 3_000_000):
        due_ns = time.monotonic_ns() + wait_ns
        timer.arm(due_ns)
        assert select.select([timer.fd], [], [], 5)[0] == [timer.fd]
        assert time.monotonic_ns() >= due_ns
        timer.acknowledge()
    timer.close()


def test_a_timer_that_is_not_armed_does_not_expire():
    timer = Timer()
    timer.arm(time.monotonic_ns() + 2_000_000)
    timer.arm(None)
    assert select.select([timer.fd], [], [], 0.02)[0] == []
    timer.acknowledge()
    timer.arm(1)
    assert select.select([timer.fd], [], [], 5)[0] == [timer.fd]
    timer.close()
