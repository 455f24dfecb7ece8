"""Healing among threads, over a transport inside the process."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from farstep.train.healing import HealingError, SourcesDisagree
from farstep.train.healing.crew import MANIFEST_SLOT
from farstep.train.healing.line import NOTHING, Answer, Line, Outcome, Wish
from farstep.train.healing.pacing import Cost, Pacer
from tests.unit.train.healing.fleet import QUICK, WAIT_S, Fleet, caught_up, digest_after, wait_until

SLOW = replace(QUICK, rate_mbps=4.0)
"""Half a megabyte takes a second from one source."""


def test_a_joiner_gets_the_state_while_the_others_train() -> None:
    with Fleet(2) as fleet:
        wait_until(lambda: fleet.committed > 3)
        joiner = fleet.join()
        joiner.wait_ready()
        caught_up(fleet, joiner)
        report = joiner.healing.last_pull
        assert report is not None
        assert sorted(report.chunks_by_source) == ["a-0", "a-1"]
        assert report.num_fetched == report.chunks_by_source.total() == -(-report.length_bytes // (16 << 10))
        assert joiner.membership.kinds() == ["heal_start", "heal_state", "heal_done"]


def test_a_follower_applies_every_step_and_memory_is_freed_when_it_goes() -> None:
    with Fleet(2) as fleet:
        joiner = fleet.join()
        joiner.wait_ready()
        for _ in range(3):
            before = fleet.committed
            wait_until(lambda before=before: joiner.adapter.committed > before + 5)
            caught_up(fleet, joiner)
        assert joiner.membership.ready == joiner.membership.ready[:1]
        joiner.stop()
        wait_until(lambda: all(seat.healing.num_receivers == 0 for seat in fleet.seats))
        assert [seat.healing.bytes_held for seat in fleet.seats] == [0, 0]


def test_nothing_is_kept_when_nobody_heals() -> None:
    with Fleet(2) as fleet:
        wait_until(lambda: fleet.committed > 10)
        assert [seat.healing.bytes_held for seat in fleet.seats] == [0, 0]


def test_each_seat_feeds_its_share_of_the_spares() -> None:
    with Fleet(2) as fleet:
        fleet.seat_everybody(spares=["s-0", "s-1"])
        spares = [fleet.join(name) for name in ("s-0", "s-1")]
        for spare in spares:
            spare.wait_ready()
        before = [seat.healing.served.gradients for seat in fleet.seats]

        def sent() -> list[int]:
            return [seat.healing.served.gradients - b for seat, b in zip(fleet.seats, before, strict=True)]

        wait_until(lambda: min(sent()) > 20)


def test_a_source_that_dies_halfway_leaves_the_rest_to_the_others() -> None:
    with Fleet(3, settings=SLOW) as fleet:
        joiner = fleet.join()
        wait_until(lambda: fleet.seats[1].healing.served.chunks >= 5)
        fleet.kill(1)
        joiner.wait_ready()
        caught_up(fleet, joiner)
        report = joiner.healing.last_pull
        assert report is not None
        num_chunks = -(-report.length_bytes // (16 << 10))
        assert report.num_fetched == num_chunks  # nothing twice
        assert report.num_kept == report.num_rejected == 0
        assert 1 <= report.chunks_by_source["a-1"] < num_chunks
        assert min(report.chunks_by_source[name] for name in ("a-0", "a-2")) > 0


def test_all_sources_lost_is_said_and_later_ones_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farstep.train.healing.facade.COMPLAIN_S", 0.1)
    with Fleet(2, settings=SLOW) as fleet:
        joiner = fleet.join()
        wait_until(lambda: fleet.seats[0].healing.served.chunks >= 3)
        both = list(fleet.seats)
        for seat in both:
            seat.healing._service.close()  # answers nobody any more

        def reasons() -> list[str]:
            return [fields["reason"] for kind, fields in joiner.membership.events if kind == "heal_waiting"]

        wait_until(lambda: any("a-0: " in reason and "stops to heal" in reason for reason in reasons()))
        assert not joiner.is_ready
        for seat in both:
            seat.healing._service._is_closed = False
        joiner.wait_ready()
        caught_up(fleet, joiner)


def test_a_line_that_breaks_is_made_again_and_the_transfer_resumes() -> None:
    with Fleet(1, settings=replace(SLOW, linger_s=60.0), step_s=0.02) as fleet:
        joiner = fleet.join()
        source = fleet.seats[0].healing
        # What has arrived, that is: chunks under way are lost with the line.
        wait_until(lambda: joiner.healing.num_chunks_held >= 5)
        for session in list(source._service._sessions.values()):
            assert session._line is not None
            session._line.fail("a cable was pulled")
        joiner.wait_ready()
        caught_up(fleet, joiner)
        report = joiner.healing.last_pull
        assert report is not None
        assert report.num_kept >= 5  # of the same snapshot, which the source kept for us
        assert report.num_fetched == -(-report.length_bytes // (16 << 10))


def test_wrong_bytes_are_rejected_and_their_source_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Fleet(2, settings=SLOW) as fleet:
        send = Line.send
        spoilt = threading.Event()

        def send_spoilt(self: Line, data: Any, slot: int, on_done: Any = None) -> None:
            if self.name.split("/")[3] == "a-1" and len(data) == 16 << 10 and not isinstance(data, bytes):
                data = data.copy()
                data[100] ^= 4
                spoilt.set()
            send(self, data, slot, on_done)

        monkeypatch.setattr(Line, "send", send_spoilt)
        joiner = fleet.join()
        joiner.wait_ready()
        assert spoilt.is_set()
        caught_up(fleet, joiner)
        report = joiner.healing.last_pull
        assert report is not None
        assert report.num_rejected >= 1
        assert report.chunks_by_source["a-1"] == 0
        rejected = [fields for kind, fields in joiner.membership.events if kind == "heal_source_rejected"]
        assert rejected[0]["source"] == "a-1"
        assert "other bytes than its manifest says" in rejected[0]["reason"]


def test_a_minority_that_deviates_is_left_out() -> None:
    with Fleet(3) as fleet:
        with fleet.paused():
            fleet.seats[1].adapter.parameters[0].data[77] += 1e-3
        joiner = fleet.join()
        joiner.wait_ready()
        caught_up(fleet, joiner)
        (rejected,) = [fields for kind, fields in joiner.membership.events if kind == "heal_source_rejected"]
        assert rejected["source"] == "a-1"
        assert "hold different bytes at step" in rejected["reason"]


def test_two_sources_that_disagree_heal_nobody() -> None:
    with Fleet(2) as fleet:
        with fleet.paused():
            fleet.seats[1].adapter.parameters[0].data[77] += 1e-3
        joiner = fleet.join()
        wait_until(lambda: joiner.error is not None)
        assert isinstance(joiner.error, SourcesDisagree)
        assert "a-0" in str(joiner.error)
        assert "a-1" in str(joiner.error)
        assert "heal_sources_disagree" in joiner.membership.kinds()


def test_a_follower_that_falls_behind_gets_a_new_snapshot_and_the_run_goes_on() -> None:
    # Room for three gradients of 160 kB each.
    with Fleet(2, settings=replace(QUICK, log_bytes_max=500_000)) as fleet:
        joiner = fleet.join()
        joiner.wait_ready()
        apply_reduced, is_slow = joiner.adapter.apply_reduced, threading.Event()
        is_slow.set()

        def apply_slowly(flats: Any, meta: Any) -> None:
            if is_slow.is_set():
                start = fleet.committed
                wait_until(lambda: fleet.committed > start + 20)
            apply_reduced(flats, meta)

        joiner.adapter.apply_reduced = apply_slowly  # type: ignore[method-assign]
        wait_until(lambda: "heal_behind" in joiner.membership.kinds())
        is_slow.clear()
        wait_until(lambda: len(joiner.membership.ready) >= 3)
        assert joiner.membership.ready[1] is None  # took its readiness back
        caught_up(fleet, joiner)
        assert all(seat.healing.bytes_held < 4_000_000 for seat in fleet.seats)


def test_a_spare_takes_over_at_the_step_the_others_are_at() -> None:
    with Fleet(2) as fleet:
        spare = fleet.join("s-0")
        spare.wait_ready()
        with fleet.paused():
            target = fleet.committed
            spare.finish()
            assert spare.healing.catch_up(target, timeout_s=WAIT_S)
            assert spare.adapter.committed == target
            assert spare.adapter.digest() == digest_after(target)
            spare.healing.on_generation(fleet.hub.generation, 1)
        wait_until(lambda: all(seat.healing.num_receivers == 0 for seat in fleet.seats))


def test_catching_up_from_nothing_pulls_the_state() -> None:
    with Fleet(2) as fleet:
        late = fleet.join("s-0")
        late.finish()
        wait_until(lambda: fleet.committed > 5)
        with fleet.paused():
            target = fleet.committed
            for seat in fleet.seats:
                seat.healing._kept.stand_still(True)
            assert late.healing.catch_up(target, timeout_s=WAIT_S)
            for seat in fleet.seats:
                seat.healing._kept.stand_still(False)
            assert late.adapter.digest() == digest_after(target)


def test_catching_up_with_nobody_gives_up_in_time() -> None:
    with Fleet(1) as fleet:
        late = fleet.join("s-0")
        late.finish()
        fleet.hub.generation = None
        assert not late.healing.catch_up(10**6, timeout_s=0.3)


def test_those_who_wait_for_a_member_can_heal_it() -> None:
    with Fleet(2) as fleet:
        wait_until(lambda: fleet.committed > 3)
        with fleet.paused(), fleet.seats[0].healing.standstill(), fleet.seats[1].healing.standstill():
            joiner = fleet.join()
            joiner.wait_ready()
            assert joiner.adapter.committed == fleet.committed
            assert joiner.adapter.digest() == fleet.seats[0].adapter.digest()
        caught_up(fleet, joiner)


def test_a_slow_feeder_is_helped_out_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with Fleet(2) as fleet:
        joiner = fleet.join()
        joiner.wait_ready()
        service = fleet.seats[joiner.healing._position() % 2].healing._service
        for session in service._sessions.values():
            monkeypatch.setattr(session, "_try_gradient", lambda line, request: False)
        before = fleet.committed
        wait_until(lambda: joiner.adapter.committed > before + 5)
        monkeypatch.undo()
        caught_up(fleet, joiner)


def test_state_that_does_not_fit_is_an_error_of_the_joiner_alone() -> None:
    with Fleet(2) as fleet:
        fleet.numel = 1000  # of the joiner's model
        joiner = fleet.join()
        wait_until(lambda: joiner.error is not None)
        assert isinstance(joiner.error, HealingError)
        assert "does not fit this member's model" in str(joiner.error)
        before = fleet.committed
        wait_until(lambda: fleet.committed > before + 5)


def test_steps_without_a_gradient_are_followed_too() -> None:
    with Fleet(2) as fleet:
        joiner = fleet.join()
        joiner.wait_ready()
        with fleet.paused():
            number = fleet.committed
            wait_until(lambda: joiner.adapter.committed == number)
            refused = {"step": number, "note": "refused"}
            members = [joiner.adapter, *(seat.adapter for seat in fleet.seats)]
            for adapter in members:
                adapter.apply_reduced = lambda flats, meta, adapter=adapter: setattr(  # type: ignore[method-assign]
                    adapter, "committed", adapter.committed + 1
                )
            for seat in fleet.seats:
                seat.healing.on_committed((), refused)
                seat.adapter.apply_reduced((), refused)
                seat.healing.at_boundary(number + 1)
            wait_until(lambda: joiner.adapter.committed == number + 1)


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.GONE, Outcome.OFFER])
def test_an_answer_nobody_asked_for_ends_the_line(outcome: Outcome) -> None:
    with Fleet(2) as fleet:
        joiner = fleet.join()
        joiner.wait_ready()
        session = next(iter(fleet.seats[0].healing._service._sessions.values()))
        assert session._line is not None
        session._line.answer(Answer(outcome, 77, 0, 1 << 60, 1 << 60))
        crew = joiner.healing._crew
        assert crew is not None
        wait_until(lambda: "nobody asked for" in crew.failures.get("a-0", ""))
        caught_up(fleet, joiner)


def test_a_late_answer_about_a_snapshot_does_no_harm() -> None:
    with Fleet(2) as fleet:
        joiner = fleet.join()
        joiner.wait_ready()
        crew = joiner.healing._crew
        assert crew is not None
        lines = [source.line for source in crew.known()]
        kept = [seat.healing._kept for seat in fleet.seats]
        with fleet.paused():
            step = fleet.committed + 3
            for source in crew.known():
                crew.ask(source, Wish.SNAPSHOT, MANIFEST_SLOT, 0)  # is past: missed
                crew.ask(source, Wish.SNAPSHOT, MANIFEST_SLOT, step)  # will be offered
            wait_until(lambda: all(step in one._wanted for one in kept))
        wait_until(lambda: fleet.committed > step + 5)
        assert [one.newest_snapshot for one in kept] == [step, step]
        caught_up(fleet, joiner)
        assert [source.line for source in crew.known()] == lines  # none was given up
        for source in crew.known():
            crew.ask(source, Wish.SNAPSHOT, MANIFEST_SLOT, fleet.committed + 10**6)  # will never come
            crew.ask(source, Wish.RELEASE)
        wait_until(lambda: all(one.newest_snapshot == NOTHING and not one._wanted for one in kept))


def test_a_receiver_that_talks_nonsense_is_dropped() -> None:
    with Fleet(1) as fleet:
        joiner = fleet.join()
        joiner.wait_ready()
        crew = joiner.healing._crew
        assert crew is not None
        sessions = fleet.seats[0].healing._service._sessions
        before = set(sessions)
        crew.known()[0].line._send_control(99, 1, 2, 3)
        wait_until(lambda: bool(set(sessions) - before))  # came back with another line
        caught_up(fleet, joiner)


def test_a_member_that_is_not_seated_yet_is_asked_again() -> None:
    with Fleet(2) as fleet:
        for seat in fleet.seats:
            seat.healing._has_seat = False
        joiner = fleet.join()
        wait_until(lambda: joiner.healing._crew is not None and len(joiner.healing._crew.known()) == 2)
        for seat in fleet.seats:
            seat.healing._has_seat = True
        joiner.wait_ready()
        assert joiner.membership.kinds() == ["heal_start", "heal_state", "heal_done"]
        crew = joiner.healing._crew
        assert crew is not None
        assert not crew.failures


DOZING = replace(QUICK, follow_slowdown=0.15, doze_s=0.2)


def cost(fleet: Fleet, thousandths: float) -> None:
    """Lets the seats find that steps are longer while somebody follows."""
    for seat in fleet.seats:
        told = {
            "follow_cost": thousandths / 1e3,
            "cost": Cost(0, 0, 0),
            "gradient_wait_ns": lambda self, *, is_new: 0,
        }
        seat.healing._pacer.__class__ = type("Told", (Pacer,), told)


@pytest.fixture
def quick_to_doze(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farstep.train.healing.effort.DEAR_S", 0.1)


def test_a_spare_that_costs_too_much_dozes_and_is_ready_all_the_same(quick_to_doze: None) -> None:
    with Fleet(2, settings=replace(DOZING, doze_s=1e6)) as fleet:
        cost(fleet, 400)
        spare = fleet.join("s-0")
        wait_until(lambda: "heal_dozing" in spare.membership.kinds())
        wait_until(lambda: spare.is_ready)
        assert None not in spare.membership.ready
        wait_until(
            lambda: all(seat.healing.bytes_held == 0 for seat in fleet.seats)
        )  # nothing is kept for it
        stays_at, before = spare.adapter.committed, fleet.committed
        wait_until(lambda: fleet.committed > before + 20)
        assert spare.adapter.committed == stays_at
        assert [seat.healing.num_receivers for seat in fleet.seats] == [1, 1]  # whom it can ask at once
        spare.finish()
        with fleet.paused():
            target = fleet.committed
            assert not spare.healing.catch_up(target), "the whole state is quicker"
            crew = spare.healing._crew
            assert crew is not None
            slots = DOZING.gradients_in_flight
            wait_until(lambda: all(len(one.free_gradient_slots) == slots for one in crew.known()))
            with fleet.seats[0].healing.standstill(), fleet.seats[1].healing.standstill():
                assert spare.healing.catch_up(target, timeout_s=WAIT_S)  # by now it insists
            assert spare.adapter.digest() == digest_after(target)


def test_a_spare_that_dozed_tries_again(quick_to_doze: None) -> None:
    with Fleet(2, settings=DOZING) as fleet:
        cost(fleet, 400)
        spare = fleet.join("s-0")
        wait_until(lambda: "heal_dozing" in spare.membership.kinds())
        cost(fleet, 50)
        start = fleet.committed
        wait_until(lambda: spare.adapter.committed > start + 20)
        caught_up(fleet, spare)
        assert spare.membership.ready[0] is not None
        assert None not in spare.membership.ready


def test_a_spare_behind_a_thin_line_is_not_ready(
    quick_to_doze: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farstep.train.healing.effort.STEPS_PER_TAKEOVER", 0)
    with Fleet(2, settings=replace(DOZING, takeover_s=1e-9)) as fleet:
        spare = fleet.join("s-0")
        spare.wait_ready()
        cost(fleet, 400)
        wait_until(lambda: None in spare.membership.ready)
        (fields,) = [fields for kind, fields in spare.membership.events if kind == "heal_dozing"][:1]
        assert fields["slowdown"] == 0.4
        assert fields["takeover_s"] >= 0


def test_a_spare_rests_now_and_then_and_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farstep.train.healing.facade.REST_AFTER_S", 0.05)
    monkeypatch.setattr("farstep.train.healing.facade.REST_AFTER_MAX_S", 0.05)
    with Fleet(2, settings=DOZING) as fleet:
        cost(fleet, 0)
        spare = fleet.join("s-0")
        spare.wait_ready()
        for _ in range(3):
            before = fleet.committed
            wait_until(lambda before=before: spare.adapter.committed > before + 20)
        caught_up(fleet, spare)
        assert spare.membership.ready == spare.membership.ready[:1]


def test_what_all_wait_for_is_not_held_back() -> None:
    slow = replace(QUICK, rate_start_mbps=0.001, rate_min_mbps=0.001)
    with Fleet(2, settings=slow) as fleet:
        wait_until(lambda: fleet.committed > 3)
        with fleet.paused():
            pacers = [seat.healing._pacer for seat in fleet.seats]
            for pacer in pacers:
                pacer.spend(1 << 20)  # hours at that rate
            assert min(pacer.wait_ns() for pacer in pacers) > 10**12
            with fleet.seats[0].healing.waiting(), fleet.seats[1].healing.waiting():
                assert [pacer.wait_ns() for pacer in pacers] == [0, 0]


def test_a_gradient_tells_how_far_its_source_is() -> None:
    with Fleet(1, settings=replace(QUICK, ping_interval_s=5.0)) as fleet:  # seldom asked
        joiner = fleet.join()
        joiner.wait_ready()
        start = fleet.committed
        wait_until(lambda: joiner.adapter.committed > start + 20)
        crew = joiner.healing._crew
        assert crew is not None
        with crew.changed:
            assert crew.newest() > start + 15


def test_whom_all_wait_for_neither_dozes_nor_rests(
    quick_to_doze: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farstep.train.healing.effort.DEAR_S", 1e6)
    with Fleet(2, settings=replace(DOZING, doze_s=1e6)) as fleet:
        cost(fleet, 400)
        spare = fleet.join("s-0")
        spare.wait_ready()
        spare.finish()
        feed = spare.healing._feed
        assert feed is not None
        feed.hold(10**6)
        start = fleet.committed
        wait_until(lambda: fleet.committed > start + 20)
        monkeypatch.setattr("farstep.train.healing.effort.DEAR_S", 0.0)
        monkeypatch.setattr(spare.healing._effort, "rest_at_s", 0.0)
        with fleet.paused():
            target = fleet.committed
            assert spare.healing.catch_up(target, timeout_s=WAIT_S)
            assert spare.adapter.digest() == digest_after(target)
        assert "heal_dozing" not in spare.membership.kinds()


def test_a_pull_that_shows_that_following_is_too_dear_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farstep.train.healing.effort.following_cost", lambda since, pulled_bytes: 9.0)
    with Fleet(2, settings=replace(DOZING, doze_s=1e6, rate_mbps=10.0)) as fleet:
        spare = fleet.join("s-0")
        wait_until(lambda: spare.is_ready)
        assert spare.membership.kinds() == ["heal_start", "heal_dozing", "heal_done"]
        assert not spare.healing.has_state
        crew = spare.healing._crew
        assert crew is not None
        most = DOZING.chunks_in_flight
        assert [len(source.free_slots) for source in crew.known()] == [most, most], (
            "what was under way is here"
        )
        wait_until(lambda: all(seat.healing.bytes_held == 0 for seat in fleet.seats))
        fetched = sum(seat.healing.served.chunks for seat in fleet.seats)
        before = fleet.committed
        wait_until(lambda: fleet.committed > before + 20)
        assert sum(seat.healing.served.chunks for seat in fleet.seats) == fetched
        spare.finish()
        with fleet.paused(), fleet.seats[0].healing.standstill(), fleet.seats[1].healing.standstill():
            target = fleet.committed
            assert not spare.healing.catch_up(target)
            assert spare.healing.catch_up(target, timeout_s=WAIT_S)
            assert spare.adapter.digest() == digest_after(target)
        assert "heal_source_rejected" not in spare.membership.kinds()


def test_who_loses_touch_again_and_again_dozes() -> None:
    # The log holds less than one gradient, so that nothing leads on from any state.
    with Fleet(2, settings=replace(DOZING, doze_s=1e6, log_bytes_max=1000, slowdown=10.0)) as fleet:
        cost(fleet, 0)
        spare = fleet.join("s-0")
        wait_until(lambda: "heal_dozing" in spare.membership.kinds())
        assert spare.membership.kinds().count("heal_behind") == 2
        wait_until(lambda: spare.is_ready)
