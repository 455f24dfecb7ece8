"""TCP senders on single paths, from step to step: the rules and constants of the packet engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.columns import Columns, Memory, uniform
from farstep.sim.flow.senders import Feedback
from farstep.sim.rivals import TcpKnobs

__all__ = ["TcpSenders"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NS_PER_S = 1e9
BDP_WINDOWS = 8.0
"""Ceiling of the window where none is set, in bandwidth-delay products (packet engine)."""
STEPS_KEPT = 24
"""Steps of news on its way back; a step is a quarter of the longest round trip."""
BACKOFF_MAX = 20.0
REPEAT_TRIPS = 1.5
"""Round trips after which a packet sent again counts as lost again (packet engine)."""
WHOLE_STEP = 1.0 - 1e-6
"""Of a step, what counts as all of it."""
ONE_BIT = 1.0
"""Less is what rounding leaves."""


class TcpSenders:
    """Windows of slow start, Reno, CUBIC (RFC 9438) or DCTCP (RFC 8257), with fast retransmit and a timeout.

    What arrives is acknowledged a round trip of the idle network after it left, for its time in queues is part of how
    late it arrives. What is lost is found out when `duplicate_threshold` later packets have arrived, and by the timeout
    where nothing follows: of the last step of a flow is drawn whether so many of its packets follow a lost one.

    Args:
        knobs: of the transport.
        packet_bits: of a full packet on the wire.
        step_ns: length of a step.
        connections: number of all.
    """

    def __init__(self, knobs: TcpKnobs, packet_bits: float, step_ns: float, connections: int) -> None:
        self._knobs = knobs
        self._packet_bits = packet_bits
        self._step_ns = step_ns
        self._state = Columns.empty(_TcpState)
        self._memory = Memory(connections, _TCP_KEPT)
        self._acks = np.zeros((STEPS_KEPT, 0))
        self._losses = np.zeros((STEPS_KEPT, 0))
        self._marks = np.zeros((STEPS_KEPT, 0))
        self._unripe = np.zeros((STEPS_KEPT, 0))
        self._passed_ns = 0.0

    def add(
        self, names: NDArray[np.uint64], line: FloatArray, round_trip_ns: FloatArray, row: IntArray
    ) -> None:
        """As `Senders.add`."""
        knobs, count = self._knobs, len(line)
        most = np.maximum(16.0, np.ceil(BDP_WINDOWS * line * round_trip_ns / self._packet_bits))
        if knobs.max_packets:
            most = np.full(count, float(knobs.max_packets))
        zeros = np.zeros(count)
        fresh = _TcpState(
            name=names.copy(),
            line=line,
            round_trip=round_trip_ns,
            window=np.full(count, float(knobs.initial_packets)),
            threshold=most,
            most=most.copy(),
            peak=zeros.copy(),
            rise_s=zeros.copy(),
            friendly=zeros.copy(),
            epoch=np.full(count, -1.0),
            smooth=round_trip_ns.copy(),
            spread=0.5 * round_trip_ns,
            in_flight=zeros.copy(),
            sent=zeros.copy(),
            known=zeros.copy(),
            recovery=zeros.copy(),
            unheard=zeros.copy(),
            ripe=zeros.copy(),
            later=zeros.copy(),
            timeout=np.full(count, np.inf),
            backoff=zeros.copy(),
            alpha=np.ones(count),
            turn=zeros.copy(),
            untold=zeros.copy(),
        )
        self._memory.recall(fresh, row)
        self._state.append(fresh)
        more = np.zeros((STEPS_KEPT, count))
        self._acks = np.concatenate((self._acks, more), axis=1)
        self._losses = np.concatenate((self._losses, more), axis=1)
        self._marks = np.concatenate((self._marks, more), axis=1)
        self._unripe = np.concatenate((self._unripe, more), axis=1)

    def keep(self, kept: BoolArray, row: IntArray) -> None:
        """As `Senders.keep`."""
        gone = np.flatnonzero(~kept)
        self._memory.note(self._state, gone, row[gone])
        self._state.keep(kept)
        self._acks, self._losses = self._acks[:, kept], self._losses[:, kept]
        self._marks, self._unripe = self._marks[:, kept], self._unripe[:, kept]

    def offer(self, now_ns: float, span: FloatArray) -> FloatArray:
        """As `Senders.offer`."""
        state = self._state
        room = np.floor(np.maximum(state.window, 1.0)) * self._packet_bits - state.in_flight
        return np.minimum(state.line * span, np.maximum(room, 0.0))

    def may_send(self) -> BoolArray:
        """As `Senders.may_send`."""
        state = self._state
        room = np.floor(np.maximum(state.window, 1.0)) * self._packet_bits - state.in_flight
        return np.asarray(room > ONE_BIT, np.bool_)

    def next_ns(self) -> float:
        """As `Senders.next_ns`."""
        if any(ring.any() for ring in (self._acks, self._losses, self._unripe)):
            return -np.inf
        return float(self._state.timeout.min(initial=np.inf))

    def slow_down(self, which: IntArray, now_ns: float) -> None:
        """As `Senders.slow_down`: there is no such thing."""

    def learn(self, seen: Feedback) -> FloatArray:
        """As `Senders.learn`."""
        state = self._state
        state.in_flight += seen.sent
        state.sent += seen.sent
        starts = (seen.sent > ONE_BIT) & ~np.isfinite(state.timeout)
        state.timeout[starts] = seen.end_ns + self._timeout_ns()[starts]
        self._post(seen)
        if not self._is_over(seen):
            return self._time_out(seen)
        acked, marked = self._acks[0].copy(), self._marks[0].copy()
        again = self._lose(seen)
        self._shift()
        self._acknowledge(seen, acked, marked)
        return again + self._time_out(seen)

    def _is_over(self, seen: Feedback) -> bool:
        """Whether a whole step has passed: what happens to links makes some of them shorter."""
        self._passed_ns += seen.end_ns - seen.begin_ns
        if self._passed_ns < WHOLE_STEP * self._step_ns:
            return False
        self._passed_ns = max(self._passed_ns - self._step_ns, 0.0) % self._step_ns
        if self._passed_ns > WHOLE_STEP * self._step_ns:
            self._passed_ns = 0.0
        return True

    def _post(self, seen: Feedback) -> None:
        """Puts news on its way back to the senders."""
        state = self._state
        part = np.arange(len(state.window))
        acked = seen.arrived
        if seen.answered is not None:
            # Each acknowledgement tells of all that came before it.
            is_told = seen.answered & (seen.arrived > 0.0)
            acked = np.where(is_told, state.untold + seen.arrived, 0.0)
            state.untold = np.where(is_told, 0.0, state.untold + seen.arrived)
        self._put(self._acks, part, acked, state.round_trip)
        if seen.mark_share.any():
            self._put(self._marks, part, acked * seen.mark_share, state.round_trip)
        self._ripen(seen)

    def _ripen(self, seen: Feedback) -> None:
        """Lets later arrivals tell of what was lost before them."""
        state, knobs = self._state, self._knobs
        # Of packets lost at the end of a flow, those are told of which others of that step follow.
        lost = np.flatnonzero(seen.lost > ONE_BIT)
        if len(lost):
            share = seen.lost[lost] / (seen.lost[lost] + seen.arrived[lost])
            state.turn[lost] += 1.0
            followed = (
                uniform(state.name[lost], state.turn[lost]) < (1.0 - share) ** knobs.duplicate_threshold
            )
            is_last = seen.left[lost] <= ONE_BIT
            if seen.waiting is not None:
                is_last &= seen.waiting[lost] <= ONE_BIT
            silent = lost[is_last & ~followed]
            state.unheard[silent] += seen.lost[silent]
            if seen.answered is not None:
                followed &= seen.answered[lost]
            told = is_last & followed
            after = state.round_trip[lost] + seen.delay_ns[lost]
            self._put(self._losses, lost[told], seen.lost[lost[told]], after[told])
            # What is ahead in the queue that was full arrives first, and tells nothing.
            rest = lost[~is_last]
            after = seen.delay_ns[rest] + self._step_ns
            # One that is lost again is missed by acknowledgements that come one and a half round trips later.
            missed = REPEAT_TRIPS * state.smooth[rest] - state.round_trip[rest]
            is_again = state.known[rest] < state.recovery[rest]
            self._put(
                self._unripe, rest, seen.lost[rest], np.where(is_again, np.maximum(after, missed), after)
            )
        state.ripe += self._unripe[0]
        self._unripe[0] = 0.0
        waits = state.ripe > 0.0
        if not waits.any():
            return
        state.later = np.where(waits, state.later + seen.arrived, 0.0)
        is_heard = state.later >= knobs.duplicate_threshold * self._packet_bits
        heard = np.flatnonzero(is_heard if seen.answered is None else is_heard & seen.answered)
        if len(heard):
            self._put(self._losses, heard, state.ripe[heard], state.round_trip[heard])
            state.ripe[heard] = state.later[heard] = 0.0

    def _put(self, ring: FloatArray, part: IntArray, bits: FloatArray, after_ns: FloatArray) -> None:
        """Puts news of the step where it is taken out before the step that it arrives in."""
        late = np.clip(after_ns / self._step_ns - 1.0, 0.0, STEPS_KEPT - 2.0)
        whole = np.floor(late).astype(np.int64)
        ring[whole, part] += bits * (1.0 - (late - whole))
        ring[whole + 1, part] += bits * (late - whole)

    def _shift(self) -> None:
        for ring in (self._acks, self._losses, self._marks, self._unripe):
            ring[:-1] = ring[1:]
            ring[-1] = 0.0

    def _lose(self, seen: Feedback) -> FloatArray:
        """Takes losses that later packets made known; returns what is sent again."""
        state = self._state
        again: FloatArray = self._losses[0].copy()
        if not again.any():
            return again
        state.in_flight -= again
        first = np.flatnonzero((again > ONE_BIT) & (state.known >= state.recovery))
        if len(first):
            kept = self._knobs.cubic_beta if self._knobs.growth == "cubic" else 0.5
            self._reduce(first, np.full(len(first), kept))
        return again

    def _reduce(self, which: IntArray, kept: FloatArray) -> None:
        state = self._state
        self._remember(which)
        state.window[which] = np.maximum(state.window[which] * kept, 2.0)
        state.threshold[which] = state.window[which]
        state.recovery[which] = state.sent[which]

    def _remember(self, which: IntArray) -> None:
        """Fast convergence (RFC 9438, 4.7)."""
        state, window = self._state, self._state.window[which]
        lower = window < state.peak[which]
        state.peak[which] = np.where(lower, window * (1.0 + self._knobs.cubic_beta) / 2.0, window)
        state.epoch[which] = -1.0

    def _acknowledge(self, seen: Feedback, acked: FloatArray, marked: FloatArray) -> None:
        state, knobs = self._state, self._knobs
        which = np.flatnonzero(acked > ONE_BIT)
        if not len(which):
            return
        state.in_flight[which] = np.maximum(state.in_flight[which] - acked[which], 0.0)
        state.known[which] = state.sent[which] - state.in_flight[which]
        sample = state.round_trip[which] + seen.delay_ns[which]
        part = np.minimum(acked[which] / self._packet_bits / knobs.ack_packets, 1.0)
        state.spread[which] += 0.25 * part * (np.abs(state.smooth[which] - sample) - state.spread[which])
        state.smooth[which] += 0.125 * part * (sample - state.smooth[which])
        state.backoff[which] = 0.0
        self._heed(which, acked[which], marked[which])
        grows = which[state.known[which] >= state.recovery[which]]
        self._grow(seen.end_ns, grows, acked[grows] / self._packet_bits)
        waits = (state.in_flight[which] > ONE_BIT) | (seen.left[which] > ONE_BIT)
        state.timeout[which] = np.where(waits, seen.end_ns + self._timeout_ns()[which], np.inf)

    def _heed(self, which: IntArray, acked: FloatArray, marked: FloatArray) -> None:
        """What marks do: DCTCP heeds their share, the others take one for a loss if they listen at all."""
        state, knobs = self._state, self._knobs
        if knobs.growth == "dctcp":
            part = np.minimum(acked / np.maximum(state.window[which] * self._packet_bits, 1.0), 1.0)
            state.alpha[which] += knobs.dctcp_g * part * (marked / acked - state.alpha[which])
        elif not knobs.ecn:
            return
        hit = which[(marked > 0.5 * self._packet_bits) & (state.known[which] >= state.recovery[which])]
        kept = 1.0 - state.alpha[hit] / 2.0 if knobs.growth == "dctcp" else np.full(len(hit), 0.5)
        if knobs.growth == "cubic":
            kept = np.full(len(hit), knobs.cubic_beta)
        self._reduce(hit, kept)

    def _grow(self, now_ns: float, which: IntArray, packets: FloatArray) -> None:
        state = self._state
        slow = state.window[which] < state.threshold[which]
        early, late = which[slow], which[~slow]
        state.window[early] = np.minimum(state.window[early] + packets[slow], state.most[early])
        if self._knobs.growth == "cubic":
            self._cubic(now_ns, late, packets[~slow])
        else:
            state.window[late] += packets[~slow] / state.window[late]
        state.window[which] = np.minimum(state.window[which], state.most[which])

    def _cubic(self, now_ns: float, which: IntArray, packets: FloatArray) -> None:
        state, knobs = self._state, self._knobs
        fresh = which[state.epoch[which] < 0.0]
        state.epoch[fresh] = now_ns
        state.peak[fresh] = np.maximum(state.peak[fresh], state.window[fresh])
        state.rise_s[fresh] = np.cbrt((state.peak[fresh] - state.window[fresh]) / knobs.cubic_c)
        state.friendly[fresh] = state.window[fresh]
        window = state.window[which]
        time_s = (now_ns - state.epoch[which] + state.smooth[which]) / NS_PER_S - state.rise_s[which]
        target = np.clip(knobs.cubic_c * time_s**3 + state.peak[which], window, 1.5 * window)
        window = window + (target - window) / window * packets
        beta = knobs.cubic_beta
        gain = np.where(state.friendly[which] >= state.peak[which], 1.0, 3.0 * (1.0 - beta) / (1.0 + beta))
        state.friendly[which] += gain * packets / window
        state.window[which] = np.maximum(window, state.friendly[which])

    def _timeout_ns(self) -> FloatArray:
        state, knobs = self._state, self._knobs
        base = np.maximum(state.smooth + 4.0 * state.spread, float(knobs.min_rto_ns))
        return np.minimum(base * 2.0**state.backoff, float(knobs.max_rto_ns))

    def _time_out(self, seen: Feedback) -> FloatArray:
        """Takes what was never heard of for lost, and begins anew with a window of one packet."""
        state, now_ns = self._state, seen.end_ns
        again = np.zeros(len(state.window))
        due = np.flatnonzero(state.timeout <= now_ns)
        if not len(due):
            return again
        again[due] = (
            state.unheard[due]
            + state.ripe[due]
            + self._unripe[:, due].sum(axis=0)
            + self._losses[:, due].sum(axis=0)
        )
        self._unripe[:, due] = self._losses[:, due] = 0.0
        state.unheard[due] = state.ripe[due] = state.later[due] = 0.0
        state.in_flight[due] = np.maximum(state.in_flight[due] - again[due], 0.0)
        state.threshold[due] = np.maximum(state.window[due] / 2.0, 2.0)
        self._remember(due)
        state.window[due] = 1.0
        state.recovery[due] = state.sent[due]
        state.backoff[due] = np.minimum(state.backoff[due] + 1.0, BACKOFF_MAX)
        state.timeout[due] = now_ns + self._timeout_ns()[due]
        self._ask(due, seen)
        return again

    def _ask(self, due: IntArray, seen: Feedback) -> None:
        """Sends a packet again that is there, which is answered with all that is."""
        state = self._state
        if seen.answered is None or seen.passes is None:
            return
        asks = due[seen.answered[due] & seen.passes[due] & (state.untold[due] > ONE_BIT)]
        self._put(self._acks, asks, state.untold[asks], state.round_trip[asks])
        state.untold[asks] = 0.0


_TCP_KEPT = (
    *("window", "threshold", "peak", "rise_s", "friendly"),
    *("epoch", "smooth", "spread", "backoff", "alpha"),
)


@dataclass(slots=True, eq=False)
class _TcpState(Columns):
    """Columns, one value per part; windows in packets, amounts in bits, times in ns."""

    name: NDArray[np.uint64]
    line: FloatArray
    round_trip: FloatArray
    window: FloatArray
    threshold: FloatArray
    most: FloatArray
    peak: FloatArray
    rise_s: FloatArray
    friendly: FloatArray
    epoch: FloatArray
    smooth: FloatArray
    spread: FloatArray
    in_flight: FloatArray
    sent: FloatArray
    known: FloatArray
    recovery: FloatArray
    unheard: FloatArray
    ripe: FloatArray
    later: FloatArray
    timeout: FloatArray
    backoff: FloatArray
    alpha: FloatArray
    turn: FloatArray
    untold: FloatArray
