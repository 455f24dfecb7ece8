"""Follows a run step by step: asks sources for the gradients of the next steps and has them applied in order.

The same thing serves one that replays what it missed while it pulled the state, and a spare that keeps up with every
step: asked ahead of time, a source sends a gradient as soon as it has it. Old ones are taken from all sources in
turn; new ones from one, chosen so that each source feeds as few spares as possible.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from farstep.collectives.vector import allocate_pages
from farstep.train.healing.crew import Crew, Source
from farstep.train.healing.errors import ImageRejected
from farstep.train.healing.image import Manifest, StateImage
from farstep.train.healing.line import Answer, Outcome, Wish

__all__ = ["GradientFeed", "ReceivedStep"]

TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class ReceivedStep:
    """One step that can be applied.

    Attributes:
        step: its number.
        flats: the reduced gradient, as views of received memory; lent until the next step is taken.
        meta: what the seats noted with it.
        buffer: that memory.
    """

    step: int
    flats: list[Tensor]
    meta: Mapping[str, Any]
    buffer: Any


@dataclass(slots=True)
class _Asked:
    sources: list[Source]
    since_s: float


class GradientFeed:
    """The gradients from some step on, in order.

    Args:
        crew: the sources.
        position: number of this member among those that follow; spreads them over the sources.
    """

    def __init__(self, crew: Crew, position: Callable[[], int]) -> None:
        self._crew = crew
        self._changed = crew.changed
        self._position = position
        self._next = 0
        self._ready: dict[int, ReceivedStep] = {}
        self._asked: dict[int, _Asked] = {}
        self._gone: dict[int, set[str]] = {}
        self._epoch = 0
        self._lent: ReceivedStep | None = None
        self._free: list[Any] = []
        self.is_lost = False
        """Whether a step that is needed is no longer to be had; only a new state helps."""
        self.rate_bytes_per_s = 0.0
        """The largest at which a gradient has arrived."""
        self._held_until = 0
        self.bytes_received = 0
        self.num_received = 0
        self.num_duplicates = 0

    def start(self, step: int) -> None:
        """Begins with the gradient of a step, forgetting all others."""
        with self._changed:
            self._epoch += 1
            self._next = step
            self._ready.clear()
            self._asked.clear()
            self._gone.clear()
            self.is_lost = False
            self._held_until = 0
            self._crew.need = step

    def hold(self, steps: int | None) -> None:
        """Asks for nothing more until the sources are so many steps ahead of what was asked for already.

        None: asks again at once.
        """
        with self._changed:
            ahead = self._crew.settings.gradients_in_flight
            self._held_until = self._next + ahead + steps if steps is not None else 0

    @property
    def lag_steps(self) -> int:
        """Steps that sources have told of and that were not taken yet."""
        with self._changed:
            return max(self._crew.newest() - self._next, 0)

    def take(self, timeout_s: float) -> ReceivedStep | None:
        """The next step in order; None if it does not arrive in time, or the crew was woken."""
        self._pump()
        with self._changed:
            if self._lent is not None:
                self._free.append(self._lent.buffer)
                self._lent = None
            num_wakes = self._crew.num_wakes
            self._changed.wait_for(
                lambda: self._next in self._ready or self.is_lost or self._crew.num_wakes != num_wakes,
                timeout_s,
            )
            received = self._ready.pop(self._next, None)
            if received is not None:
                self._lent = received
                self._gone.pop(self._next, None)
                self._next += 1
                self._crew.need = self._next
        self._pump()
        return received

    @property
    def has_newest(self) -> bool:
        """Whether every step that any source has told of was taken."""
        with self._changed:
            return bool(self._crew.alive()) and self._next >= self._crew.newest()

    # -- asking ---------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Asks for what is neither here nor asked for; again where a source failed or is late."""
        asks: list[tuple[Source, int, int]] = []
        with self._changed:
            alive = self._crew.alive()
            now_s = time.monotonic()
            is_held = self._crew.newest() < self._held_until
        self._crew.follow(not is_held)
        if is_held:
            return
        with self._changed:
            for step in range(self._next, self._next + self._crew.settings.gradients_in_flight):
                source = self._whom_to_ask(step, alive, now_s)
                if source is None:
                    continue
                slot = source.free_gradient_slots.pop()
                source.on_answer[slot] = self._answer_handler(source, step, slot, self._epoch)
                asked = self._asked.setdefault(step, _Asked([], now_s))
                asked.sources.append(source)
                asked.since_s = now_s
                asks.append((source, slot, step))
        for source, slot, step in asks:
            self._crew.ask(source, Wish.GRADIENT, slot, step)

    def _whom_to_ask(self, step: int, alive: list[Source], now_s: float) -> Source | None:
        if step in self._ready:
            return None
        asked = self._asked.get(step)
        waiting = [source for source in asked.sources if source.is_alive] if asked else []
        gone = self._gone.get(step, set())
        usable = [
            source
            for source in alive
            if source.free_gradient_slots and source.member_id not in gone and source not in waiting
        ]
        if waiting:
            assert asked is not None, "somebody was asked"
            # Others have had the step for a while: whoever was asked first is slow or in trouble.
            is_late = now_s - asked.since_s > self._crew.settings.hedge_s
            usable = [source for source in usable if source.status and source.status.committed > step]
            if not is_late:
                return None
        if not usable:
            return None
        is_old = step < self._crew.newest()
        return usable[(step if is_old else self._position()) % len(usable)]

    # -- receiving ------------------------------------------------------------------------------------------------

    def _answer_handler(self, source: Source, step: int, slot: int, epoch: int) -> Callable[[Answer], None]:
        def on_answer(answer: Answer) -> None:
            limits = self._crew.settings.limits
            if answer.outcome is Outcome.GONE:
                self._on_gone(source, step, slot, epoch)
            elif answer.outcome is not Outcome.GRADIENT or answer.step != step:
                self._crew.ban(source, f"{source.member_id} answered {answer.outcome.name} for step {step}")
            elif (
                answer.manifest_bytes > limits.manifest_bytes_max
                or answer.image_bytes > limits.state_bytes_max
            ):
                self._crew.ban(
                    source, f"{source.member_id} offers {answer.image_bytes} bytes for step {step}"
                )
            else:
                self._receive(source, answer, slot, epoch)

        return on_answer

    def _on_gone(self, source: Source, step: int, slot: int, epoch: int) -> None:
        with self._changed:
            source.free_gradient_slots.append(slot)
            if epoch != self._epoch:
                return
            asked = self._asked.get(step)
            if asked is not None and source in asked.sources:
                asked.sources.remove(source)
            gone = self._gone.setdefault(step, set())
            gone.add(source.member_id)
            alive = self._crew.alive()
            if step >= self._next and alive and all(other.member_id in gone for other in alive):
                self.is_lost = True
            self._changed.notify_all()

    def _receive(self, source: Source, answer: Answer, slot: int, epoch: int) -> None:
        began_s = time.monotonic()
        text = allocate_pages(answer.manifest_bytes)[: answer.manifest_bytes]
        data = self._buffer(answer.image_bytes)

        def on_text(error: BaseException | None) -> None:
            if error is None and not answer.image_bytes:
                on_data(None)

        def on_data(error: BaseException | None) -> None:
            received = None
            if error is None:
                rate = answer.image_bytes / max(time.monotonic() - began_s, 1e-6)
                self.rate_bytes_per_s = max(self.rate_bytes_per_s, rate)
                try:
                    received = _decode(text.tobytes(), data, answer.step, self._crew)
                except ImageRejected as rejected:
                    self._crew.ban(
                        source, f"{source.member_id} sent a wrong gradient of step {answer.step}: {rejected}"
                    )
            self._on_received(source, slot, epoch, answer.step, received)

        source.line.receive(text, slot, on_text)
        if answer.image_bytes:
            source.line.receive(data, slot, on_data)

    def _buffer(self, length_bytes: int) -> Any:
        """Memory for a gradient: that of one applied before if it fits, because new pages cost more than the copy."""
        with self._changed:
            fitting = next((one for one in self._free if one.nbytes == length_bytes), None)
            self._free = [one for one in self._free if one is not fitting and one.nbytes == length_bytes]
        return fitting if fitting is not None else allocate_pages(length_bytes)[:length_bytes]

    def _on_received(
        self, source: Source, slot: int, epoch: int, step: int, received: ReceivedStep | None
    ) -> None:
        with self._changed:
            source.free_gradient_slots.append(slot)
            if epoch == self._epoch:
                self._asked.pop(step, None)
                if received is not None and step >= self._next and step not in self._ready:
                    self._ready[step] = received
                    self.num_received += 1
                    self.bytes_received += sum(flat.nbytes for flat in received.flats)
                elif received is not None:
                    self.num_duplicates += 1
            self._changed.notify_all()


def _decode(text: bytes, data: Any, step: int, crew: Crew) -> ReceivedStep:
    manifest = Manifest.parse(text, crew.settings.limits)
    if manifest.length_bytes != data.nbytes or manifest.step != step:
        raise ImageRejected("its manifest describes something else")
    image = StateImage(data, manifest)
    image.verify()
    content = image.state()
    is_valid = isinstance(content, dict) and isinstance(content.get("flats"), list)
    if not is_valid or not isinstance(content.get("meta"), dict):
        raise ImageRejected("it is no gradient with its notes")
    if not all(isinstance(flat, Tensor) for flat in content["flats"]):
        raise ImageRejected("it is no list of tensors")
    return ReceivedStep(step, content["flats"], content["meta"], data)
