"""What senders on single paths let out from step to step: the interface, and DCQCN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.columns import Columns, Memory, exponential
from farstep.sim.rivals import RoceKnobs

__all__ = ["Dcqcn", "Feedback", "Senders"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NS_PER_S = 1e9
BITS_PER_BYTE = 8.0


@dataclass(frozen=True, slots=True, eq=False)
class Feedback:
    """What became of a step, per part of a flow.

    Attributes:
        begin_ns: begin of the step.
        end_ns: its end.
        sent: float64, bits that left the sender.
        arrived: float64, bits that arrived.
        lost: float64, bits that found a queue full or, where senders repeat what is missing alone, a bad link.
        left: float64, bits the sender has yet to send.
        mark_share: float64, part of the arrivals that carries a mark.
        delay_ns: float64, time in queues on the way.
        waiting: float64, bits under way behind those that a bad link lost; None: nothing happens to links.
        answered: bool, whether what receivers say arrives; None: nothing happens to links.
        passes: bool, whether what senders send arrives; None: nothing happens to links.
    """

    begin_ns: float
    end_ns: float
    sent: FloatArray
    arrived: FloatArray
    lost: FloatArray
    left: FloatArray
    mark_share: FloatArray
    delay_ns: FloatArray
    waiting: FloatArray | None = None
    answered: BoolArray | None = None
    passes: BoolArray | None = None


class Senders(Protocol):
    """State of the senders of all parts under way, in the order of the parts."""

    def add(
        self, names: NDArray[np.uint64], line: FloatArray, round_trip_ns: FloatArray, row: IntArray
    ) -> None:
        """Begins parts with these names, lines in bits per ns, round trips of the idle network, and connections."""

    def keep(self, kept: BoolArray, row: IntArray) -> None:
        """Forgets parts, by a mask of those that stay; what their connections learned is kept."""

    def offer(self, now_ns: float, span: FloatArray) -> FloatArray:
        """Bits the senders would let out in times of these lengths from now on."""

    def learn(self, seen: Feedback) -> FloatArray:
        """Takes in what became of a step; returns bits that are sent again, float64 (parts,)."""

    def may_send(self) -> BoolArray:
        """Whether the senders would let out more at present, bool (parts,)."""

    def next_ns(self) -> float:
        """When the next timer runs out if nobody sends; below 0 while news is on its way."""

    def slow_down(self, which: IntArray, now_ns: float) -> None:
        """Lets parts know of a sequence error."""


class Dcqcn:
    """DCQCN (Zhu et al. 2015) for every part: the rules and constants of the packet engine.

    A receiver notifies once a packet came marked, at most once in `notify_interval_ns`. Packets are whole, and which of
    them is marked is drawn.

    Args:
        knobs: of the transport.
        packet_bits: of a full packet on the wire.
        connections: number of all.
    """

    def __init__(self, knobs: RoceKnobs, packet_bits: float, connections: int) -> None:
        self._knobs = knobs
        self._packet_bits = packet_bits
        self._state = Columns.empty(_DcqcnState)
        self._memory = Memory(connections, _DCQCN_KEPT)

    def add(
        self, names: NDArray[np.uint64], line: FloatArray, round_trip_ns: FloatArray, row: IntArray
    ) -> None:
        """As `Senders.add`."""
        fresh = _DcqcnState(
            name=names.copy(),
            line=line,
            rate=line.copy(),
            target=line.copy(),
            alpha=np.ones(len(line)),
            alpha_due=np.full(len(line), np.inf),
            rate_due=np.full(len(line), np.inf),
            time_steps=np.zeros(len(line)),
            byte_steps=np.zeros(len(line)),
            bits=np.zeros(len(line)),
            round_trip=round_trip_ns,
            notify=np.full(len(line), -np.inf),
            until_mark=exponential(names, 0),
            notices=np.zeros(len(line)),
            packets=exponential(names, -1.0) % 1.0,
            news=np.full(len(line), np.inf),
        )
        self._memory.recall(fresh, row)
        self._state.append(fresh)

    def keep(self, kept: BoolArray, row: IntArray) -> None:
        """As `Senders.keep`."""
        gone = np.flatnonzero(~kept)
        self._memory.note(self._state, gone, row[gone])
        self._state.keep(kept)

    def offer(self, now_ns: float, span: FloatArray) -> FloatArray:
        """As `Senders.offer`."""
        state = self._state
        if self._knobs.dcqcn:
            # News of the second half of a step counts from the next one on.
            middle_ns = now_ns + 0.5 * span.max(initial=0.0)
            told = np.flatnonzero(state.news <= middle_ns)
            if len(told):
                self._cut(told)
            self._advance(middle_ns)
        if self._knobs.window_packets:
            window = self._knobs.window_packets * self._packet_bits
            return np.minimum(state.rate, window / state.round_trip) * span
        return state.rate * span

    def may_send(self) -> BoolArray:
        """As `Senders.may_send`: a rate is never 0."""
        return np.ones(len(self._state.rate), np.bool_)

    def next_ns(self) -> float:
        """As `Senders.next_ns`: rates wait for nothing."""
        return np.inf

    def slow_down(self, which: IntArray, now_ns: float) -> None:
        """As `Senders.slow_down`: some NICs take it for a notification."""
        if self._knobs.halves_on_nack and self._knobs.dcqcn:
            self._state.news[which] = np.minimum(self._state.news[which], now_ns)

    def learn(self, seen: Feedback) -> FloatArray:
        """As `Senders.learn`; PFC loses nothing, and without it what is lost goes back into the flow."""
        state = self._state
        state.bits += np.where(np.isfinite(state.rate_due), seen.sent, 0.0)
        self._notify(seen)
        return seen.lost

    def _notify(self, seen: Feedback) -> None:
        """Finds whose receivers got a marked packet when they may notify, and when the sender will know."""
        state = self._state
        # Whole packets count, from when the receiver may notify again.
        open_ns = np.clip(state.notify, seen.begin_ns, seen.end_ns)
        arrived = seen.arrived / self._packet_bits
        begin = state.packets + arrived * (open_ns - seen.begin_ns) / (seen.end_ns - seen.begin_ns)
        state.packets += arrived
        whole = np.floor(begin)
        number = np.floor(state.packets) - whole
        hazard = -np.log1p(-np.minimum(seen.mark_share, 1.0 - 1e-9))
        with np.errstate(divide="ignore", invalid="ignore"):
            turn = np.maximum(np.ceil(state.until_mark / hazard), 1.0)
        is_marked = (hazard > 0.0) & (turn <= number)
        marked = np.flatnonzero(is_marked)
        state.until_mark -= hazard * number
        part = (whole[marked] + turn[marked] - begin[marked]) / (state.packets[marked] - begin[marked])
        at = open_ns[marked] + part * (seen.end_ns - open_ns[marked])
        state.notices[marked] += 1.0
        state.until_mark[marked] = exponential(state.name[marked], state.notices[marked])
        state.notify[marked] = at + self._knobs.notify_interval_ns
        heard = marked if seen.answered is None else np.flatnonzero(is_marked & seen.answered)
        state.news[heard] = at[np.searchsorted(marked, heard)] + state.round_trip[heard]

    def _cut(self, told: IntArray) -> None:
        state, knobs = self._state, self._knobs
        at = state.news[told]
        decays = np.where(
            state.alpha_due[told] <= at,
            (at - np.where(np.isfinite(state.alpha_due[told]), state.alpha_due[told], at))
            // knobs.alpha_timer_ns
            + 1.0,
            0.0,
        )
        self._advance(at, told)
        alpha = state.alpha[told] * (1.0 - knobs.dcqcn_g) ** decays
        line = state.line[told]
        lowest = _or(knobs.min_bytes_per_s, line / 1000.0)
        state.target[told] = state.rate[told]
        state.rate[told] = np.maximum(state.rate[told] * (1.0 - alpha / 2.0), lowest)
        state.alpha[told] = (1.0 - knobs.dcqcn_g) * alpha + knobs.dcqcn_g
        state.alpha_due[told] = at + knobs.alpha_timer_ns
        state.rate_due[told] = at + knobs.rate_timer_ns
        state.time_steps[told] = state.byte_steps[told] = state.bits[told] = 0.0
        state.news[told] = np.inf

    def _advance(self, now_ns: float | FloatArray, which: IntArray | None = None) -> None:
        state, knobs = self._state, self._knobs
        among = np.arange(len(state.rate)) if which is None else which
        now = np.broadcast_to(np.asarray(now_ns, np.float64), among.shape)
        counter = BITS_PER_BYTE * knobs.byte_counter_bytes
        while True:
            by_time = state.rate_due[among] <= now
            by_bytes = np.isfinite(state.rate_due[among]) & (state.bits[among] >= counter)
            if not (by_time.any() or by_bytes.any()):
                return
            state.time_steps[among[by_time]] += 1.0
            state.rate_due[among[by_time]] += knobs.rate_timer_ns
            self._increase(among[by_time])
            state.byte_steps[among[by_bytes]] += 1.0
            state.bits[among[by_bytes]] -= counter
            self._increase(among[by_bytes])

    def _increase(self, which: IntArray) -> None:
        state, knobs = self._state, self._knobs
        line, steps = state.line[which], np.maximum(state.time_steps[which], state.byte_steps[which])
        both = np.minimum(state.time_steps[which], state.byte_steps[which]) > knobs.fast_recovery
        more = np.where(
            both, _or(knobs.hyper_bytes_per_s, line / 10), _or(knobs.additive_bytes_per_s, line / 20)
        )
        target = state.target[which] + np.where(steps > knobs.fast_recovery, more, 0.0)
        target = np.minimum(target, line)
        rate = 0.5 * (state.rate[which] + target)
        whole = (target >= line) & (rate > line * (1.0 - 1e-6))
        state.target[which], state.rate[which] = target, np.where(whole, line, rate)
        state.rate_due[which[whole]] = np.inf


_DCQCN_KEPT = (
    *("rate", "target", "alpha", "alpha_due", "rate_due", "time_steps"),
    *("byte_steps", "bits", "notify", "news", "notices", "packets", "until_mark"),
)


@dataclass(slots=True, eq=False)
class _DcqcnState(Columns):
    """Columns, one value per part; rates in bits per ns."""

    name: NDArray[np.uint64]
    line: FloatArray
    rate: FloatArray
    target: FloatArray
    alpha: FloatArray
    alpha_due: FloatArray
    rate_due: FloatArray
    time_steps: FloatArray
    byte_steps: FloatArray
    bits: FloatArray
    round_trip: FloatArray
    notify: FloatArray
    until_mark: FloatArray
    notices: FloatArray
    packets: FloatArray
    news: FloatArray


def _or(bytes_per_s: float, otherwise: FloatArray) -> FloatArray:
    """A rate in bits per ns where one is given."""
    if bytes_per_s > 0:
        return np.full(len(otherwise), bytes_per_s * BITS_PER_BYTE / NS_PER_S)
    return otherwise
