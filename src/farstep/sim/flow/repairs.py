"""Packets that dead or lossy links swallow, and how they are sent again.

Under RoCE a receiver takes packets in order. From the first that is missing on it refuses all others, and says so once.
The sender hears it a round trip later and goes back. Where nothing follows that could be refused, or what it repeats is
lost as well, it goes back by its timer, which runs from the last acknowledgement or the first packet after a pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.columns import Columns, exponential
from farstep.sim.rivals import RoceKnobs

__all__ = ["Arrivals", "GoBack", "Repair", "Selective"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NOTHING_BITS = 1e-3
"""Bits that count as none."""
WHOLE = 1e-6
"""Of a packet, what rounding leaves."""
MANY = 30.0
"""Losses from which on their mean is taken."""
LOSS_TURNS = 1_000_000.0
"""First turn of the draws of losses, apart from those of marks..."""
ANSWER_TURNS = 2_000_000.0
"""...and of those of answers."""


class PacketLosses:
    """Draws which packets lossy links lose: the packets between two losses of a part."""

    def __init__(self) -> None:
        self._name = np.zeros(0, np.uint64)
        self._until = np.zeros(0)
        self._turn = np.zeros(0)

    def add(self, names: NDArray[np.uint64]) -> None:
        """Begins parts."""
        turn = np.full(len(names), LOSS_TURNS)
        self._name = np.concatenate((self._name, names))
        self._until = np.concatenate((self._until, exponential(names, turn)))
        self._turn = np.concatenate((self._turn, turn))

    def keep(self, kept: BoolArray) -> None:
        """Forgets parts, by a mask of those that stay."""
        self._name, self._until, self._turn = self._name[kept], self._until[kept], self._turn[kept]

    def first(self, part: IntArray, hazard: FloatArray, packets: FloatArray) -> FloatArray:
        """Passes packets of parts up to the first that is lost, float64: its number from 1 on, or infinity."""
        turn = np.maximum(np.ceil(self._until[part] / hazard), 1.0)
        is_lost = turn <= packets
        self._until[part] -= hazard * np.where(is_lost, turn, packets)
        hit = part[is_lost]
        self._turn[hit] += 1.0
        self._until[hit] = exponential(self._name[hit], self._turn[hit])
        return np.where(is_lost, turn, np.inf)

    def count(self, part: IntArray, hazard: FloatArray, packets: FloatArray) -> FloatArray:
        """How many of so many packets, whole or not, are lost."""
        number = np.where(hazard * packets > MANY, -np.expm1(-hazard) * packets, 0.0)
        some = np.flatnonzero(number == 0.0)
        self._until[part[some]] -= (hazard * packets)[some]
        while len(some := some[self._until[part[some]] <= 0.0]):
            number[some] += 1.0
            which = part[some]
            self._turn[which] += 1.0
            self._until[which] += exponential(self._name[which], self._turn[which])
        return number


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """What came out of the queues in a step, per part, in bits.

    Attributes:
        begin_ns: begin of the step.
        end_ns: its end.
        arrived: at the receiver.
        before: of that, what was sent before everything that vanished.
        vanished: on dead links, before the rest of what arrived.
        left: what the receiver had yet to get when the step began.
        hazard: of a packet on lossy links: minus the logarithm of the share that passes.
        answered: bool, whether what the receiver says arrives.
        answer_hazard: of that on lossy links.
    """

    begin_ns: float
    end_ns: float
    arrived: FloatArray
    before: FloatArray
    vanished: FloatArray
    left: FloatArray
    hazard: FloatArray
    answered: BoolArray
    answer_hazard: FloatArray


class Repair(Protocol):
    """State of all parts under way, in the order of the parts."""

    is_told: bool
    """Whether what is lost is news to the senders, and not to this."""

    def add(self, names: NDArray[np.uint64], size: FloatArray, round_trip_ns: FloatArray) -> None:
        """Begins parts of so many bits."""

    def keep(self, kept: BoolArray) -> None:
        """Forgets parts, by a mask of those that stay."""

    @property
    def misses(self) -> BoolArray:
        """Whether the receiver misses something the sender does not go back to yet, bool (parts,)."""

    @property
    def ahead(self) -> FloatArray:
        """Bits of later messages that were sent while something was missing, float64 (parts,); may be added to."""

    @property
    def untold(self) -> FloatArray:
        """Bits that have arrived and of which the senders do not know: answers were lost, float64 (parts,)."""

    def may_send(self, now_ns: float) -> BoolArray:
        """Whether senders are not held up by a sequence error, bool (parts,)."""

    def room(self, outstanding: FloatArray) -> FloatArray:
        """Bits that may be sent where something is missing and so much has been sent since."""

    def next_ns(self, now_ns: float) -> float:
        """When the next sender goes back, or goes on, if nothing else happens."""

    def due(self, now_ns: float, waiting: FloatArray) -> tuple[IntArray, IntArray]:
        """Lets senders go back whose time has come.

        Args:
            now_ns: time.
            waiting: float64 (parts,), bits in queues.

        Returns:
            Parts that go back, to the first packet of which they do not know, and those among them that were told to.
        """

    def receive(self, seen: Arrivals) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Sorts what came.

        Returns:
            What is taken, refused and lost, bits, float64 (parts,). What is taken is below 0 where a packet is lost of
            which the first bits had been counted.
        """


class Selective:
    """Nothing but what is missing is sent again, of which senders learn like of all losses (TCP).

    Args:
        packet_bits: of a full packet on the wire.
    """

    is_told = True

    def __init__(self, packet_bits: float) -> None:
        self._packet_bits = packet_bits
        self._losses = PacketLosses()
        self.ahead = np.zeros(0)

    def add(self, names: NDArray[np.uint64], size: FloatArray, round_trip_ns: FloatArray) -> None:
        """As `Repair.add`."""
        self._losses.add(names)
        self.ahead = np.concatenate((self.ahead, np.zeros(len(names))))

    def keep(self, kept: BoolArray) -> None:
        """As `Repair.keep`."""
        self._losses.keep(kept)
        self.ahead = self.ahead[kept]

    @property
    def misses(self) -> BoolArray:
        """As `Repair.misses`: nobody goes back."""
        return np.zeros(len(self.ahead), np.bool_)

    @property
    def untold(self) -> FloatArray:
        """As `Repair.untold`: the senders see to it."""
        return np.zeros(len(self.ahead))

    def may_send(self, now_ns: float) -> BoolArray:
        """As `Repair.may_send`."""
        return np.ones(len(self.ahead), np.bool_)

    def room(self, outstanding: FloatArray) -> FloatArray:
        """As `Repair.room`."""
        return np.full(len(outstanding), np.inf)

    def next_ns(self, now_ns: float) -> float:
        """As `Repair.next_ns`."""
        return np.inf

    def due(self, now_ns: float, waiting: FloatArray) -> tuple[IntArray, IntArray]:
        """As `Repair.due`."""
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    def receive(self, seen: Arrivals) -> tuple[FloatArray, FloatArray, FloatArray]:
        """As `Repair.receive`."""
        hazard = seen.hazard
        lost = np.zeros(len(hazard))
        some = np.flatnonzero((hazard > 0.0) & (seen.arrived > NOTHING_BITS))
        if len(some):
            number = self._losses.count(some, hazard[some], seen.arrived[some] / self._packet_bits)
            lost[some] = np.minimum(number * self._packet_bits, seen.arrived[some])
        return seen.arrived - lost, np.zeros(len(hazard)), lost + seen.vanished


class GoBack:
    """What receivers and timers of parts know of packets that are missing.

    Args:
        knobs: of the transport.
        packet_bits: of a full packet on the wire.
    """

    is_told = False

    def __init__(self, knobs: RoceKnobs, packet_bits: float) -> None:
        self._knobs = knobs
        self._packet_bits = packet_bits
        self._state = Columns.empty(_GoBackState)
        self._losses = PacketLosses()

    def add(self, names: NDArray[np.uint64], size: FloatArray, round_trip_ns: FloatArray) -> None:
        """As `Repair.add`."""
        count = len(names)
        self._losses.add(names)
        self._state.append(
            _GoBackState(
                name=names.copy(),
                size=size,
                round_trip=round_trip_ns,
                misses=np.zeros(count),
                refused=np.zeros(count),
                stale=np.zeros(count),
                told_ns=np.full(count, np.inf),
                timer_ns=np.full(count, np.inf),
                free_ns=np.full(count, -np.inf),
                left_then=np.full(count, np.inf),
                ahead=np.zeros(count),
                untold=np.zeros(count),
                turn=np.full(count, ANSWER_TURNS),
            )
        )

    def keep(self, kept: BoolArray) -> None:
        """As `Repair.keep`."""
        self._state.keep(kept)
        self._losses.keep(kept)

    @property
    def misses(self) -> BoolArray:
        """As `Repair.misses`."""
        return np.asarray(self._state.misses > 0.0, np.bool_)

    @property
    def ahead(self) -> FloatArray:
        """As `Repair.ahead`."""
        return self._state.ahead

    @property
    def untold(self) -> FloatArray:
        """As `Repair.untold`."""
        return self._state.untold

    def may_send(self, now_ns: float) -> BoolArray:
        """As `Repair.may_send`."""
        return np.asarray(self._state.free_ns <= now_ns, np.bool_)

    def room(self, outstanding: FloatArray) -> FloatArray:
        """As `Repair.room`."""
        if not self._knobs.window_packets:
            return np.full(len(outstanding), np.inf)
        window = self._knobs.window_packets * self._packet_bits
        return np.where(self.misses, np.maximum(window - outstanding, 0.0), np.inf)

    def next_ns(self, now_ns: float) -> float:
        """As `Repair.next_ns`."""
        state = self._state
        waits = np.minimum(state.told_ns, state.timer_ns)
        free = state.free_ns[state.free_ns > now_ns]
        return float(min(waits[self.misses].min(initial=np.inf), free.min(initial=np.inf)))

    def due(self, now_ns: float, waiting: FloatArray) -> tuple[IntArray, IntArray]:
        """As `Repair.due`."""
        state, knobs = self._state, self._knobs
        if not state.misses.any():
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        is_told = self.misses & (state.told_ns <= now_ns)
        is_late = self.misses & (state.timer_ns <= now_ns)
        back = np.flatnonzero(is_told | is_late)
        state.misses[back] = 0.0
        state.ahead[back] = 0.0
        state.told_ns[back] = np.inf
        late, told = np.flatnonzero(is_late), np.flatnonzero(is_told & ~is_late)
        is_news = state.untold[told] > NOTHING_BITS
        state.timer_ns[told[is_news]] = state.timer_ns[late] = now_ns + knobs.rto_ns
        state.untold[told] = 0.0
        # What is in queues, and what has arrived before, is refused.
        state.stale[back] = waiting[back] + state.untold[back]
        state.free_ns[told] = now_ns + knobs.recovery_ns
        return back, told

    def receive(self, seen: Arrivals) -> tuple[FloatArray, FloatArray, FloatArray]:
        """As `Repair.receive`."""
        state = self._state
        stale = np.minimum(state.stale, seen.vanished)
        state.stale -= stale
        gone = seen.vanished - stale
        old = np.minimum(state.stale, seen.arrived)
        state.stale -= old
        taken, refused, lost = seen.arrived - old, old, seen.vanished.copy()
        begins = np.flatnonzero((gone > NOTHING_BITS) & ~self.misses)
        spared = np.zeros(len(taken))
        spared[begins] = np.minimum(seen.before, taken)[begins]
        state.refused[spared > NOTHING_BITS] = 0.0
        self._miss(begins, seen, seen.left[begins] - spared[begins])
        hit = self._lose(seen, taken, refused, lost)
        spared[hit] = taken[hit]
        behind = np.flatnonzero(self.misses & (taken > spared))
        refused[behind] += taken[behind] - spared[behind]
        taken[behind] = spared[behind]
        behind = behind[refused[behind] > NOTHING_BITS]
        self._refuse(behind, seen, np.full(len(behind), seen.begin_ns))
        state.refused[(taken > NOTHING_BITS) & ~self.misses] = 0.0
        state.untold += np.maximum(taken, 0.0)
        state.untold[seen.answered & (taken > NOTHING_BITS)] = 0.0
        return taken, refused, lost

    def _lose(self, seen: Arrivals, taken: FloatArray, refused: FloatArray, lost: FloatArray) -> IntArray:
        """Takes out packets that lossy links lose, what follows the first being refused; returns who lost one."""
        state, packet, hazard = self._state, self._packet_bits, seen.hazard
        some = np.flatnonzero((hazard > 0.0) & (taken + refused > NOTHING_BITS))
        if not len(some):
            return some
        astray = refused[some] + np.where(self.misses[some], taken[some], 0.0)
        astray *= -np.expm1(-hazard[some])
        is_taken = ~self.misses[some]
        refused[some] -= np.where(is_taken, astray, 0.0)
        taken[some] -= np.where(is_taken, 0.0, astray)
        lost[some] += astray
        some = some[is_taken & (taken[some] > NOTHING_BITS)]
        place = (state.size[some] - seen.left[some]) / packet
        until = place + taken[some] / packet
        whole = np.floor(until + WHOLE) - np.floor(place + WHOLE)
        is_last = seen.left[some] - taken[some] <= NOTHING_BITS
        whole += is_last & (np.abs(until - np.rint(until)) > WHOLE)
        turn = self._losses.first(some, hazard[some], whole)
        hit = np.isfinite(turn)
        some, place, turn = some[hit], place[hit], turn[hit]
        begin = (np.floor(place + WHOLE) + turn - 1.0) * packet
        size = np.minimum(packet, state.size[some] - begin)
        good = begin - place * packet
        rest = np.maximum(taken[some] - good - size, 0.0)
        part = np.clip((good + size) / taken[some], 0.0, 1.0)
        taken[some] = good
        lost[some] += size
        refused[some] += rest
        state.refused[some[good > NOTHING_BITS]] = 0.0
        self._miss(some, seen, seen.left[some] - good)
        at_ns = seen.begin_ns + part * (seen.end_ns - seen.begin_ns)
        self._refuse(some[rest > NOTHING_BITS], seen, at_ns[rest > NOTHING_BITS])
        return some

    def _miss(self, which: IntArray, seen: Arrivals, left: FloatArray) -> None:
        """Begins to miss packets. The timer runs from the last news, which a round trip ago was on its way."""
        state = self._state
        state.misses[which] = 1.0
        is_further = left < state.left_then[which] - NOTHING_BITS
        has_news = left < state.size[which] - NOTHING_BITS
        news_ns = np.where(has_news, state.round_trip[which], 0.0) + seen.begin_ns
        state.timer_ns[which] = np.where(is_further, news_ns + self._knobs.rto_ns, state.timer_ns[which])
        state.left_then[which] = left

    def _refuse(self, which: IntArray, seen: Arrivals, at_ns: FloatArray) -> None:
        """Lets receivers say that something is missing: once, until something is taken again."""
        state = self._state
        is_fresh = state.refused[which] == 0.0
        fresh, at_ns = which[is_fresh], at_ns[is_fresh]
        state.refused[fresh] = 1.0
        passes = seen.answered[fresh]
        if seen.answer_hazard[fresh].any():
            state.turn[fresh] += 1.0
            drawn = exponential(state.name[fresh], state.turn[fresh])
            passes &= drawn > seen.answer_hazard[fresh]
        state.told_ns[fresh[passes]] = at_ns[passes] + state.round_trip[fresh[passes]]


@dataclass(slots=True, eq=False)
class _GoBackState(Columns):
    """Columns, one value per part: bits, times in ns, and 0 or 1."""

    name: NDArray[np.uint64]
    size: FloatArray
    round_trip: FloatArray
    misses: FloatArray
    refused: FloatArray
    stale: FloatArray
    told_ns: FloatArray
    timer_ns: FloatArray
    free_ns: FloatArray
    left_then: FloatArray
    ahead: FloatArray
    untold: FloatArray
    turn: FloatArray
