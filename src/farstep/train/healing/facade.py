"""What a trainer sees of healing: a few calls while it has a seat, and one call that makes it fit for one."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from farstep.collectives.transport import Endpoint
from farstep.train.healing.crew import Crew, Membership
from farstep.train.healing.effort import SURE, Effort, Progress, patience_s
from farstep.train.healing.errors import HealingError
from farstep.train.healing.feed import GradientFeed
from farstep.train.healing.letters import ANSWER_KIND, OPEN_KIND, LetterStore, letter, letter_of
from farstep.train.healing.pacing import Pacer
from farstep.train.healing.pull import ImagePull, PullReport
from farstep.train.healing.settings import HealingSettings
from farstep.train.healing.snapshot import SnapshotStore, StateAdapter
from farstep.train.healing.source import Served, SourceService

__all__ = ["Healing"]

logger = logging.getLogger(__name__)

TICK_S = 0.05
LINGER_TICK_S = 0.005
CLOSE_TIMEOUT_S = 5.0
NO_ANSWER_S = 1.0
"""Those who wait for a member to catch up have other means if it reaches nobody for so long."""
REST_STEPS = 6
"""Steps that the others have to themselves now and then, so that they know how long those are."""
REST_AFTER_S, REST_AFTER_MAX_S = 5.0, 120.0
LOST_MAX = 2
"""States pulled in a row whose gradients were gone before they could be made up for; then the newcomer dozes."""
DOZE_FACTOR_MAX = 10
ALONE_S = 1.0
"""Without any source for so long, a member that holds part of a memory checkpoint offers that instead of a state."""
COMPLAIN_S = 10.0
"""Pause between two messages that nobody can give the state."""


class Healing:
    """Gives the state of the run to members that lack it, or gets it.

    A member with a seat calls :meth:`on_generation`, :meth:`on_committed` and :meth:`at_boundary`; others are served
    from threads of their own. A member without one calls :meth:`follow`; the adapter is then called by that thread.

    Args:
        membership: who has a seat, and how to reach them.
        endpoint: this member's; healing makes connections of its own on it.
        adapter: the state.
        run_id: names the run.
        settings: rates, bounds and timeouts.
        lane: which part of a replica group's state this is.
        held_step: step of the newest memory checkpoint of which this member holds a part, -1 for none; with one it
            is of use in a seat even when nobody is left to give it a state.
    """

    def __init__(
        self,
        *,
        membership: Membership,
        endpoint: Endpoint,
        adapter: StateAdapter,
        run_id: str,
        settings: HealingSettings | None = None,
        lane: int = 0,
        held_step: Callable[[], int] | None = None,
    ) -> None:
        self.settings = settings or HealingSettings()
        self._membership = membership
        self._endpoint = endpoint
        self._adapter = adapter
        self._run_id = run_id
        self._lane = lane
        self._held_step = held_step
        self._has_offered = False
        chosen = self.settings
        self._kept = SnapshotStore(
            adapter,
            log_bytes_max=chosen.log_bytes_max,
            chunk_bytes=chosen.chunk_bytes,
            niceness=chosen.niceness,
        )
        self._pacer = Pacer(
            rate_mbps=chosen.rate_mbps,
            start_mbps=chosen.rate_start_mbps,
            least_mbps=chosen.rate_min_mbps,
            slowdown=chosen.slowdown,
            follow_slowdown=chosen.follow_slowdown,
        )
        self._service = SourceService(endpoint, self._kept, self._pacer, chosen)
        self._own_ns = 0
        self._has_seat = False
        self._crew: Crew | None = None
        self._feed: GradientFeed | None = None
        self._has_state = False
        self._is_ready = False
        self._pulling: ImagePull | None = None
        self._doze: _Doze | None = None
        self._is_awaited = False
        self._doze_s = self.settings.doze_s
        self._effort = Effort(time.monotonic())
        self._num_lost = 0
        self._began_s: float | None = None
        self._is_closed = threading.Event()
        self._closing: threading.Thread | None = None
        self.last_pull: PullReport | None = None
        """How the last state was pulled."""
        membership.on_request(self._on_request)

    # -- with a seat ----------------------------------------------------------------------------------------------

    def on_generation(self, generation: Any, seat: int | None) -> None:
        """Notes, in the thread that trains, that a generation has begun; with a seat, following is over."""
        self._has_seat = seat is not None
        if self._has_seat:
            self._stop_following()
            self._kept.at_boundary(self._adapter.committed)
        else:
            self.wake()

    def on_committed(self, flats: Sequence[Tensor], meta: Mapping[str, Any]) -> None:
        """Keeps the reduced gradient of a step for those who follow; returns at once if there are none.

        Args:
            flats: exactly what :meth:`StateAdapter.apply_reduced` needs; copied here.
            meta: JSON, with the number of the step as ``step``.
        """
        began_ns = time.monotonic_ns()
        self._kept.on_committed(flats, meta)
        self._own_ns += time.monotonic_ns() - began_ns

    def at_boundary(self, step: int) -> None:
        """Between two steps: the moment at which a snapshot can be taken.

        Args:
            step: number of steps committed.
        """
        own_ns, self._own_ns = self._own_ns, 0
        service = self._service
        self._pacer.step_ended(
            step, is_engaged=service.is_engaged, is_followed=service.is_followed, own_ns=own_ns
        )
        began_ns = time.monotonic_ns()
        self._kept.at_boundary(step)
        self._own_ns = time.monotonic_ns() - began_ns

    @contextlib.contextmanager
    def standstill(self) -> Iterator[None]:
        """While the context lasts the state does not change, so that others can be healed without a step.

        Put it around every wait for a generation: if too few members are left to train, those who come must get the
        state from those who wait for them.
        """
        self._kept.at_boundary(self._adapter.committed)
        self._pacer.stand_still(True)
        self._kept.stand_still(True)
        try:
            yield
        finally:
            self._kept.stand_still(False)
            self._pacer.stand_still(False)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While the context lasts no step is under way, so that nothing that others need is held back.

        Put it around the whole of a change of members: what a newcomer is short of is what all wait for.
        """
        self._pacer.stand_still(True)
        with self._kept.changed:
            self._kept.notify()
        try:
            yield
        finally:
            self._pacer.stand_still(False)

    def linger(self, timeout_s: float) -> None:
        """At the end of the run: serves those that still follow until they have all, but not for longer than this."""
        end_s = time.monotonic() + timeout_s
        with self.standstill():
            while self._service.num_sessions and time.monotonic() < end_s:
                self._is_closed.wait(LINGER_TICK_S)

    @property
    def served(self) -> Served:
        """What this member has sent to others."""
        return self._service.served

    @property
    def bytes_held(self) -> int:
        """Memory for snapshots and gradients of others; 0 when nobody heals or follows."""
        return self._kept.bytes_held

    @property
    def num_receivers(self) -> int:
        """Members served now."""
        return self._service.num_sessions

    @property
    def rate_mbps(self) -> float:
        """Rate at which this member would send state now, in 10^6 bit/s."""
        return self._pacer.rate_mbps

    @property
    def copy_s(self) -> float:
        """How long the last snapshot kept the training thread."""
        return self._kept.copy_ns / 1e9

    # -- without a seat -------------------------------------------------------------------------------------------

    def follow(self, is_done: Callable[[], bool]) -> None:
        """Gets the state, replays what was missed, announces that this member is ready, and applies every new step.

        Sources that fail are replaced; if there are none it waits for some, saying so. A follower that falls too far
        behind gets the whole state anew.

        Args:
            is_done: polled; True ends the call.

        Raises:
            SourcesDisagree: healthy members hold different states.
            HealingError: what they hold cannot become this member's state.
        """
        crew, feed = self._begin_following()
        while not self._is_over(is_done):
            if self._doze is not None:
                self._sleep_on(crew, self._doze)
            elif not self._has_state:
                self._pull(crew, feed, is_done)
            elif self._is_too_dear(crew, feed):
                self._fall_asleep(crew, feed)
            elif feed.is_lost:
                self._lose_touch(crew, feed)
            else:
                self._apply_next(feed)

    @property
    def has_state(self) -> bool:
        """Whether there is a state of the run here from which gradients lead on."""
        return self._has_state

    @property
    def num_chunks_held(self) -> int:
        """Chunks of the state being pulled that have arrived and were verified."""
        pull = self._pulling
        return pull.num_chunks_held if pull is not None else 0

    def catch_up(
        self,
        step: int,
        sources: Sequence[str] = (),
        timeout_s: float = 30.0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Brings the state to a number of steps, by gradients if possible, else by pulling it whole.

        Args:
            step: number of steps wanted.
            sources: who has them; informative, since everyone with a seat is asked.
            timeout_s: when to give up; earlier if nobody answers at all.
            is_over: polled; True ends the call: those who wait for this member do so no more.

        Returns:
            Whether the state has seen exactly that many steps.
        """
        if self._adapter.committed < step:
            end_s = time.monotonic() + timeout_s
            heard_s = time.monotonic()

            def is_done() -> bool:
                nonlocal heard_s
                now_s = time.monotonic()
                if self._has_sources():
                    heard_s = now_s
                is_hopeless = now_s > end_s or now_s - heard_s > NO_ANSWER_S
                return self._adapter.committed >= step or is_hopeless or is_over()

            if self._doze is not None:
                self._doze = None
                return False  # so far behind that the whole state is quicker, and all wait for it
            self._has_state = True  # whatever it is, gradients may lead on from it
            self._is_awaited = True
            if self._feed is not None:
                self._feed.hold(None)
            try:
                self.follow(is_done)
            finally:
                self._is_awaited = False
        return self._adapter.committed == step

    def wake(self) -> None:
        """Makes :meth:`follow` look at once whether it is done, and at the newest generation."""
        crew = self._crew
        if crew is not None:
            crew.wake()

    def close(self) -> None:
        """Ends everything; receivers go on with other sources."""
        self._is_closed.set()
        self._stop_following()
        self._service.close()
        if self._closing is not None:
            self._closing.join(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _on_request(self, sender: str, payload: Mapping[str, Any]) -> None:
        found = letter_of(payload, self._lane)
        if found is None:
            return
        kind, name, key, value = found
        crew = self._crew
        if kind == ANSWER_KIND and crew is not None:
            crew.deliver(sender, name, key, value)
        elif kind == OPEN_KIND and self._has_seat:
            store = LetterStore(
                lambda key, value: self._membership.request(
                    sender, letter(ANSWER_KIND, self._lane, name, key, value)
                )
            )
            store.deliver(key, value)
            self._service.open(sender, name, store)

    def _begin_following(self) -> tuple[Crew, GradientFeed]:
        if self._crew is None or self._feed is None:
            self._crew = Crew(self._endpoint, self._membership, self._run_id, self._lane, self.settings)
            self._feed = GradientFeed(self._crew, self._position)
            self._is_ready = False
            if self._has_state:
                self._feed.start(self._adapter.committed)
            self._crew.start()
        return self._crew, self._feed

    def _stop_following(self) -> None:
        """Ends all lines to sources, in the background: whoever has just been given a seat has better things to do."""
        crew, self._crew, self._feed = self._crew, None, None
        self._doze = None
        if crew is not None:
            self._closing = threading.Thread(target=crew.close, name="farstep-heal-close", daemon=True)
            self._closing.start()

    def _is_over(self, is_done: Callable[[], bool]) -> bool:
        return self._is_closed.is_set() or is_done()

    def _has_sources(self) -> bool:
        crew = self._crew
        if crew is None:
            return False
        with crew.changed:
            return bool(crew.alive())

    def _position(self) -> int:
        """Place among the spares; spreads followers over the seats."""
        generation = self._membership.current()
        spares = [member.member_id for member in generation.spares] if generation is not None else []
        own_id = self._membership.member.member_id
        return spares.index(own_id) if own_id in spares else len(spares)

    def _pull(self, crew: Crew, feed: GradientFeed, is_done: Callable[[], bool]) -> None:
        complained_s = alone_s = time.monotonic()

        def is_cancelled() -> bool:
            nonlocal complained_s, alone_s
            if self._has_sources():
                complained_s = alone_s = time.monotonic()
            elif time.monotonic() - alone_s > ALONE_S:
                self._offer_memory()
            if not self._has_sources() and time.monotonic() - complained_s > COMPLAIN_S:
                complained_s = time.monotonic()
                self._complain(crew)
            return self._is_over(is_done)

        self._membership.event("heal_start", at_step=self._adapter.committed)
        if self._began_s is None:
            self._began_s = time.monotonic()
        crew.follow(False)
        pull = self._pulling = ImagePull(crew, is_cancelled, lambda: self._is_hopeless(crew, pull))
        self._effort = Effort(time.monotonic())
        image = pull.run()
        self._pulling = None
        if image is None:
            if pull.was_futile:
                self._fall_asleep(crew, feed, pull.length_bytes)
            return
        step = image.manifest.step
        feed.start(step)
        try:
            self._adapter.restore(image.state())
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise HealingError(
                f"the state of the run at step {step} does not fit this member's model or optimizer: {error}"
            ) from error
        if self._adapter.committed != step:
            raise HealingError(
                f"the state given for step {step} says it is of step {self._adapter.committed}"
            )
        self._has_state = True
        report = self.last_pull = pull.report
        self._effort = Effort(time.monotonic(), report.duration_s if report is not None else 0.0)
        if report is not None:
            self._membership.event(
                "heal_state",
                step=step,
                bytes=report.length_bytes,
                took_ms=round(report.duration_s * 1e3, 3),
                rate_mbps=round(report.rate_bytes_per_s * 8 / 1e6, 3),
                sources=dict(report.chunks_by_source),
                kept=report.num_kept,
                lost=report.num_lost,
                rejected=report.num_rejected,
            )

    def _is_hopeless(self, crew: Crew, pull: ImagePull) -> bool:
        """Whether what was pulled so far shows that following will cost the others far more than it may."""
        bound = self.settings.follow_slowdown
        if bound is None or self._is_awaited:
            return False
        with crew.changed:
            status = crew.dearest()
        if status is None or status.is_standing:
            return False
        self._effort.note_pulled(status, pull.num_bytes_held)
        return self._effort.cost > SURE * bound

    def _lose_touch(self, crew: Crew, feed: GradientFeed) -> None:
        """A gradient that is needed is gone: the whole state again, but not for ever."""
        self._membership.event("heal_behind", step=self._adapter.committed)
        self._num_lost = 0 if self._is_ready else self._num_lost + 1
        if self._num_lost >= LOST_MAX and self.settings.follow_slowdown is not None and not self._is_awaited:
            self._num_lost = 0
            self._fall_asleep(crew, feed)
            return
        if self._is_ready:
            self._membership.announce_ready(None)
        self._has_state = self._is_ready = False

    def _offer_memory(self) -> None:
        """Asks for a seat without a state: the members' memory may hold the newest one that is left."""
        step = self._held_step() if self._held_step is not None else -1
        if step >= 0 and not self._has_offered:
            self._has_offered = True
            self._membership.announce_ready(step)

    def _complain(self, crew: Crew) -> None:
        reason = crew.describe()
        logger.warning("waiting for a member that can give the state of the run: %s", reason)
        self._membership.event("heal_waiting", reason=reason)

    def _apply_next(self, feed: GradientFeed) -> None:
        received = feed.take(TICK_S)
        if received is not None:
            self._adapter.apply_reduced(received.flats, received.meta)
            if self._adapter.committed != received.step + 1:
                raise HealingError(
                    f"applying step {received.step} led to {self._adapter.committed} committed steps, "
                    f"not {received.step + 1}"
                )
        if not self._is_ready and feed.has_newest:
            self._be_ready()
            self._effort.rest_after_s = REST_AFTER_S
            self._effort.rest_at_s = time.monotonic() + REST_AFTER_S
        elif self._may_rest():
            feed.hold(REST_STEPS)
            self._effort.rest_after_s = min(2 * self._effort.rest_after_s, REST_AFTER_MAX_S)
            self._effort.rest_at_s = time.monotonic() + self._effort.rest_after_s

    def _may_rest(self) -> bool:
        is_bounded = self.settings.follow_slowdown is not None
        return is_bounded and not self._is_awaited and time.monotonic() > self._effort.rest_at_s

    def _be_ready(self) -> None:
        self._is_ready = True
        self._membership.announce_ready(self._adapter.committed)
        took_s = time.monotonic() - self._began_s if self._began_s is not None else 0.0
        pulled, feed = self.last_pull, self._feed
        self._membership.event(
            "heal_done",
            step=self._adapter.committed,
            took_ms=round(took_s * 1e3, 3),
            state_bytes=pulled.length_bytes if pulled is not None else 0,
            gradient_bytes=feed.bytes_received if feed is not None else 0,
            rate_mbps=round(pulled.rate_bytes_per_s * 8 / 1e6, 3) if pulled is not None else 0.0,
        )
        self._began_s = None

    # -- what following costs the others --------------------------------------------------------------------------

    def _is_too_dear(self, crew: Crew, feed: GradientFeed) -> bool:
        """Whether to follow every step slows the others down for too long, or leads nowhere."""
        bound = self.settings.follow_slowdown
        if bound is None or self._is_awaited:  # whom all wait for slows nobody's steps
            return False
        with crew.changed:
            cost = crew.follow_cost()
        now = Progress(time.monotonic(), feed.lag_steps, cost, self._is_ready)
        return self._effort.is_too_dear(now, bound)

    def _fall_asleep(self, crew: Crew, feed: GradientFeed, length_bytes: int = 0) -> None:
        """Asks for nothing more; the state comes when a seat does, while all wait for it, if that is not too long."""
        pulled = self.last_pull
        length_bytes = length_bytes or (pulled.length_bytes if pulled is not None else 0)
        with crew.changed:
            step_s = crew.step_s()
            rate = max(feed.rate_bytes_per_s, crew.rate_bytes_per_s())
        takeover_s = length_bytes / rate if rate else 0.0
        self._doze = _Doze(time.monotonic() + self._doze_s)
        self._doze_s = min(2 * self._doze_s, DOZE_FACTOR_MAX * self.settings.doze_s)
        crew.rest()
        self._membership.event(
            "heal_dozing",
            step=self._adapter.committed,
            slowdown=round(self._effort.cost, 3),
            lag_steps=feed.lag_steps,
            takeover_s=round(takeover_s, 3),
        )
        tried_s = time.monotonic() - self._began_s if self._began_s is not None else 0.0
        is_quick = takeover_s <= patience_s(self.settings.takeover_s, step_s, tried_s)
        if is_quick and not self._is_ready:
            self._be_ready()
        elif self._is_ready and not is_quick:
            self._is_ready = False
            self._membership.announce_ready(None)

    def _sleep_on(self, crew: Crew, doze: "_Doze") -> None:
        with crew.changed:
            num_wakes = crew.num_wakes
            crew.changed.wait_for(lambda: crew.num_wakes != num_wakes, TICK_S)
        if time.monotonic() > doze.until_s:
            self._doze, self._has_state = None, False


@dataclass(slots=True)
class _Doze:
    """A spare that does not follow.

    Attributes:
        until_s: when it tries again.
    """

    until_s: float
