"""Carries packets over one channel: queue, serialiser, propagation, and what goes wrong on the way.

Rules.

1. Time comes in as integer nanoseconds; no socket and no clock here, so a test can step through it.
2. Packets travel as runs: segments of equal size of one received burst, evenly spaced by the serialiser. A
   burst costs one run unless something befalls one of its packets.
3. A packet's way: outage, queue (drop-tail, ECN mark), serialisation at the rate, loss, corruption,
   duplication, propagation with jitter. Lost packets take up capacity, as they do on a real line.
4. Order is kept within a channel; only packets drawn for reordering are overtaken.
5. Conservation: offered + duplicated = delivered + dropped + in flight, at any time.
"""

from __future__ import annotations

import heapq
from collections import deque

from farstep.fabric import HEADER_BYTES, Channel, ChannelState
from farstep.lab.buffers import BufferPool, Chunk
from farstep.lab.draws import QUIET_FOREVER, Bernoulli, LossDraws, Uniforms
from farstep.lab.runs import Batch, Counters, Exit, Run

NS_PER_MS = 1_000_000

ECN_MASK = 0b11
ECN_NOT_CAPABLE = 0b00
ECN_CE = 0b11


class Carrier:
    """One channel at work.

    Args:
        channel: which channel it is.
        state: what it does to packets.
        seed: seed of the network.
        pool: where chunks of memory are given back to.
    """

    def __init__(self, channel: Channel, state: ChannelState, seed: int, pool: BufferPool) -> None:
        key = f"{seed}:{channel}"
        self.channel = channel
        self.counters = Counters()
        self.wakeup = 0
        """Number of the wake-up the forwarder holds for this carrier; 0: none."""
        self._pool = pool
        self._runs: deque[Run] = deque()
        self._held: list[tuple[int, int, Run]] = []
        self._in_flight = 0
        self._busy_until_ns = 0
        self._last_due_ns = 0
        self._loss = LossDraws(f"{key}:loss")
        self._corrupt = Bernoulli(f"{key}:corrupt")
        self._duplicate = Bernoulli(f"{key}:duplicate")
        self._reorder = Bernoulli(f"{key}:reorder")
        self._jitter = Uniforms(f"{key}:jitter")
        self._flipped_bit = Uniforms(f"{key}:bit")
        self._take_figures(state)

    @property
    def state(self) -> ChannelState:
        """What the channel does to packets now."""
        return self._state

    @property
    def in_flight(self) -> int:
        """Packets queued or propagating."""
        return self._in_flight

    @property
    def next_due_ns(self) -> int | None:
        """When the next packet leaves; None if there is none."""
        due_ns = self._runs[0].due_ns if self._runs else None
        if self._held and (due_ns is None or self._held[0][0] < due_ns):
            return self._held[0][0]
        return due_ns

    def queue_bytes(self, now_ns: int) -> int:
        """Returns the bytes, headers counted, not yet serialised."""
        waiting_ns = self._busy_until_ns - now_ns
        return round(waiting_ns / self._ns_per_byte) if self._ns_per_byte and waiting_ns > 0 else 0

    # -- in -----------------------------------------------------------------------------------------------

    def offer(
        self, now_ns: int, view: memoryview, segment_bytes: int, tos: int, exit: Exit, chunk: Chunk
    ) -> None:
        """Takes a burst: datagrams of `segment_bytes` one after the other, the last possibly shorter.

        Args:
            now_ns: when it arrived.
            view: the bytes; they must stay unchanged while `chunk` is held.
            segment_bytes: size of each datagram but the last; at least 1.
            tos: traffic class byte, ECN bits included.
            exit: where the packets go.
            chunk: memory `view` lies in; the carrier takes holds of its own.
        """
        num_bytes = len(view)
        count = 1 if num_bytes <= segment_bytes else -(-num_bytes // segment_bytes)
        counters = self.counters
        first = counters.offered_packets
        counters.offered_packets += count
        counters.offered_bytes += num_bytes
        if self._state.is_down:
            counters.drops["outage"] += count
            return
        admitted, mark_from, start_ns, gap_ns = count, count, now_ns, 0
        if self._ns_per_byte:
            wire_bytes = min(num_bytes, segment_bytes) + HEADER_BYTES
            gap_ns = int(wire_bytes * self._ns_per_byte + 0.5)
            start_ns = max(now_ns, self._busy_until_ns)
            backlog_bytes = (start_ns - now_ns) / self._ns_per_byte
            admitted = self._admit(backlog_bytes, wire_bytes, count)
            if not admitted:
                return
            mark_from = self._mark_from(backlog_bytes, wire_bytes, tos)
        full = admitted
        tail_bytes = num_bytes - (count - 1) * segment_bytes
        tail_gap_ns = gap_ns
        if admitted == count and tail_bytes < segment_bytes and count > 1:
            full = count - 1
            tail_gap_ns = int((tail_bytes + HEADER_BYTES) * self._ns_per_byte + 0.5)
        self._busy_until_ns = start_ns + full * gap_ns + (tail_gap_ns if full < admitted else 0)
        size = min(num_bytes, segment_bytes)
        is_quiet = first + admitted <= self._quiet_until and not self._jitter_ns
        if is_quiet and mark_from >= full:
            due_ns = start_ns + gap_ns + self._delay_ns
            self._append(Run(view, 0, size, full, due_ns, gap_ns, self._delay_ns, tos, exit, chunk))
        else:
            self._offer_in_pieces(start_ns, view, size, first, full, mark_from, gap_ns, tos, exit, chunk)
        if full < admitted:
            start_ns += full * gap_ns
            tail_tos = tos | ECN_CE if mark_from <= full else tos
            self._offer_in_pieces(
                start_ns,
                view[full * size :],
                tail_bytes,
                first + full,
                1,
                1,
                tail_gap_ns,
                tail_tos,
                exit,
                chunk,
            )
            counters.ecn_marked += tail_tos != tos

    def drop(self, num_bytes: int, segment_bytes: int, cause: str) -> None:
        """Counts a burst that never reached the channel as offered and dropped."""
        count = max(1, -(-num_bytes // max(1, segment_bytes)))
        self.counters.offered_packets += count
        self.counters.offered_bytes += num_bytes
        self.counters.drops[cause] += count

    def _admit(self, backlog_bytes: float, wire_bytes: int, count: int) -> int:
        """Returns how many packets of a burst the queue takes; one that finds the line idle always passes."""
        room = self._queue_max - backlog_bytes
        if room >= count * wire_bytes:
            return count
        admitted = max(int(room // wire_bytes), 1 if backlog_bytes <= 0 else 0)
        admitted = min(admitted, count)
        self.counters.drops["queue"] += count - admitted
        return admitted

    def _mark_from(self, backlog_bytes: float, wire_bytes: int, tos: int) -> int:
        """Returns the place in the burst from which packets find the queue above the ECN threshold."""
        threshold = self._state.ecn_threshold_bytes
        if threshold is None or tos & ECN_MASK in (ECN_NOT_CAPABLE, ECN_CE):
            return QUIET_FOREVER
        return 0 if backlog_bytes > threshold else int((threshold - backlog_bytes) // wire_bytes) + 1

    def _offer_in_pieces(
        self,
        start_ns: int,
        view: memoryview,
        size: int,
        first: int,
        count: int,
        mark_from: int,
        gap_ns: int,
        tos: int,
        exit: Exit,
        chunk: Chunk,
    ) -> None:
        """Cuts a burst at the packets something befalls; `first` is the number of its first packet."""
        end = first + count
        lost = set(self._loss.hits(first, end))
        special = {
            *lost,
            *(corrupt := self._corrupt.hits(first, end)),
            *(duplicate := self._duplicate.hits(first, end)),
            *(reorder := self._reorder.hits(first, end)),
        }
        self._find_quiet(end)
        self.counters.drops["loss"] += len(lost)
        if mark_from < count:
            self.counters.ecn_marked += count - mark_from
        piece = 0
        while piece < count:
            index = first + piece
            until = piece + 1
            if index not in special and not self._jitter_ns:
                limit = count if piece >= mark_from else min(count, mark_from)
                while until < limit and first + until not in special:
                    until += 1
            if index not in lost:
                delay_ns = self._delay_ns
                if self._jitter_ns:
                    delay_ns += int(self._jitter.at(index) * self._jitter_ns)
                due_ns = start_ns + (piece + 1) * gap_ns + delay_ns
                piece_tos = tos | ECN_CE if piece >= mark_from else tos
                offset, piece_view = piece * size, view
                if index in corrupt:
                    offset, piece_view = 0, self._flip(view[offset : offset + size], index)
                parts = (
                    piece_view,
                    offset,
                    size,
                    until - piece,
                    due_ns,
                    gap_ns,
                    delay_ns,
                    piece_tos,
                    exit,
                    chunk,
                )
                if index in reorder:
                    self._hold(Run(*parts))
                else:
                    self._append(Run(*parts))
                if index in duplicate:
                    self.counters.duplicated += 1
                    self._append(Run(*parts))
            piece = until

    def _append(self, run: Run) -> None:
        """Puts a run at the end of the line, never ahead of what is already on it."""
        run.due_ns = max(run.due_ns, self._last_due_ns)
        self._last_due_ns = run.due_ns + (run.count - 1) * run.gap_ns
        run.chunk.num_live += 1
        self._in_flight += run.count
        self._runs.append(run)

    def _hold(self, run: Run) -> None:
        """Keeps a packet beside the line, so that others overtake it."""
        run.delay_ns += self._reorder_ns
        run.due_ns += self._reorder_ns
        run.chunk.num_live += 1
        self._in_flight += run.count
        self.counters.reordered += run.count
        heapq.heappush(self._held, (run.due_ns, self.counters.reordered, run))

    def _flip(self, segment: memoryview, index: int) -> memoryview:
        flipped = bytearray(segment)
        if flipped:
            self.counters.corrupted += 1
            bit = int(self._flipped_bit.at(index) * len(flipped) * 8)
            flipped[bit // 8] ^= 1 << bit % 8
        return memoryview(flipped)

    # -- out ----------------------------------------------------------------------------------------------

    def release(self, now_ns: int) -> None:
        """Sends every packet that is due, consecutive ones of equal size to one exit together."""
        runs = self._runs
        counters = self.counters
        behind_ns = now_ns - (self.next_due_ns or now_ns)
        counters.releases += 1
        counters.late_ns_sum += behind_ns
        counters.late_ns_max = max(counters.late_ns_max, behind_ns)
        batch = Batch(counters)
        while self._held and self._held[0][0] <= now_ns:
            run = heapq.heappop(self._held)[2]
            batch.add(run, 1)
            self._pool.release(run.chunk)
        batch.flush()
        while runs:
            run = runs[0]
            behind_ns = now_ns - run.due_ns
            if behind_ns < 0:
                break
            if run.gap_ns and behind_ns < run.gap_ns * (run.count - 1):
                batch.add(run, behind_ns // run.gap_ns + 1)
                break
            batch.add(run, run.count)
            runs.popleft()
            self._pool.release(run.chunk)
        batch.flush()
        self._in_flight -= batch.sent

    # -- changes ------------------------------------------------------------------------------------------

    def set_state(self, state: ChannelState, now_ns: int) -> None:
        """Changes what the channel does; packets still queued are served under the new figures.

        An outage loses what has not left the queue; what already propagates arrives.
        """
        old = self._state
        self._take_figures(state)
        if (old.is_down, old.rate_mbps, old.delay_ms) == (state.is_down, state.rate_mbps, state.delay_ms):
            return
        waiting = self._split_waiting(now_ns)
        self._busy_until_ns = now_ns
        self._last_due_ns = 0
        if self._runs:
            last = self._runs[-1]
            self._last_due_ns = last.due_ns + (last.count - 1) * last.gap_ns
        if state.is_down:
            left = [entry for entry in self._held if entry[2].due_ns - entry[2].delay_ns <= now_ns]
            waiting += [entry[2] for entry in self._held if entry not in left]
            heapq.heapify(left)
            self._held = left
            for run in waiting:
                self.counters.drops["outage"] += run.count
                self._in_flight -= run.count
                self._pool.release(run.chunk)
        else:
            self._serve_again(waiting)

    def _serve_again(self, waiting: list[Run]) -> None:
        for run in waiting:
            run.gap_ns = int((run.segment_bytes + HEADER_BYTES) * self._ns_per_byte + 0.5)
            run.delay_ns = self._delay_ns
            run.due_ns = max(self._last_due_ns, self._busy_until_ns + run.gap_ns + run.delay_ns)
            self._busy_until_ns += run.count * run.gap_ns
            self._last_due_ns = run.due_ns + (run.count - 1) * run.gap_ns
            self._runs.append(run)

    def _split_waiting(self, now_ns: int) -> list[Run]:
        """Takes out of the runs what is not serialised yet, cutting the run that is being served."""
        waiting: list[Run] = []
        kept: deque[Run] = deque()
        for run in self._runs:
            left_ns = now_ns - (run.due_ns - run.delay_ns)
            if waiting or left_ns < 0:
                waiting.append(run)
                continue
            departed = run.count if not run.gap_ns else min(run.count, left_ns // run.gap_ns + 1)
            kept.append(run)
            if departed < run.count:
                offset, size = run.offset + departed * run.segment_bytes, run.segment_bytes
                rest = Run(
                    run.view, offset, size, run.count - departed, 0, 0, 0, run.tos, run.exit, run.chunk
                )
                run.chunk.num_live += 1
                run.count = departed
                waiting.append(rest)
        self._runs = kept
        return waiting

    def _take_figures(self, state: ChannelState) -> None:
        self._state = state
        self._ns_per_byte = 8000.0 / state.rate_mbps if state.rate_mbps is not None else 0.0
        self._delay_ns = round(state.delay_ms * NS_PER_MS)
        self._jitter_ns = round(state.jitter_ms * NS_PER_MS)
        self._reorder_ns = round(state.reorder_delay_ms * NS_PER_MS)
        self._queue_max = state.queue_bytes_max or 0
        self._loss.set(state.loss_percent / 100.0, state.loss_burst_packets)
        self._corrupt.probability = state.corrupt_percent / 100.0
        self._duplicate.probability = state.duplicate_percent / 100.0
        self._reorder.probability = state.reorder_percent / 100.0
        self._find_quiet(self.counters.offered_packets)

    def _find_quiet(self, index: int) -> None:
        """Notes up to which packet number nothing random happens."""
        self._quiet_until = min(
            self._loss.quiet_until(index),
            self._corrupt.quiet_until(index),
            self._duplicate.quiet_until(index),
            self._reorder.quiet_until(index),
        )
