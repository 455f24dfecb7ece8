"""Healing among threads over real endpoints on loopback."""

import time
from dataclasses import replace
from typing import Any

from farstep.engine import Endpoint, PortConfig
from tests.unit.train.healing.fleet import QUICK, Fleet, caught_up, wait_until


def endpoint(name: str) -> Endpoint:
    return Endpoint([PortConfig()], name=name)


def over_loopback(num_seats: int, **settings: Any) -> Fleet:
    return Fleet(num_seats, make_endpoint=endpoint, settings=replace(QUICK, **settings), numel=100_000)


def test_a_joiner_follows_over_loopback() -> None:
    with over_loopback(2) as fleet:
        wait_until(lambda: fleet.committed > 3)
        joiner = fleet.join()
        joiner.wait_ready()
        before = fleet.committed
        wait_until(lambda: joiner.adapter.committed > before + 10)
        caught_up(fleet, joiner)
        report = joiner.healing.last_pull
        assert report is not None
        assert sorted(report.chunks_by_source) == ["a-0", "a-1"]


def test_a_source_that_hangs_is_noticed_by_its_silence() -> None:
    with over_loopback(3, rate_mbps=4.0, silence_s=1.0) as fleet:
        joiner = fleet.join()
        wait_until(lambda: fleet.seats[1].healing.served.chunks >= 3)
        seat = fleet.seats[1]
        with fleet.paused():
            fleet.seats.remove(seat)
        for session in list(seat.healing._service._sessions.values()):
            session._serve = lambda line: time.sleep(0.05)  # type: ignore[method-assign]  # hangs
        joiner.wait_ready()
        report = joiner.healing.last_pull
        assert report is not None
        assert report.num_fetched == -(-report.length_bytes // QUICK.chunk_bytes)
        caught_up(fleet, joiner)
