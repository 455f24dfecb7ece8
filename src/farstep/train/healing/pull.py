"""Pulls a whole state from several sources at once, each chunk from whoever is free, every chunk once.

The receiver has all sources copy their state at the same step boundary. Their manifests must agree; then any chunk may
come from any of them, and a source that dies leaves only the chunks under way to the others.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from farstep.collectives.vector import allocate_pages
from farstep.train.healing.crew import MANIFEST_SLOT, Crew, Source
from farstep.train.healing.errors import ImageRejected, SourcesDisagree
from farstep.train.healing.image import Manifest, StateImage
from farstep.train.healing.line import NOTHING, Answer, Outcome, Wish

__all__ = ["ImagePull", "PullReport"]

MARGIN_S = 0.02
"""Ahead of now at which sources are to copy their state, beyond round trips."""
AGREE_TRIES_MAX = 5
"""Attempts to have all sources copy at the same boundary; after that those that could are enough."""
REFRESH_S = 0.5
"""What members that were only now asked get to answer, so that all can take part."""
FAILURES_MAX = 3
"""Snapshots that turn out to be of no use before the receiver gives up."""
WAIT_S = 0.1


@dataclass(slots=True)
class PullReport:
    """How a pull went.

    Attributes:
        step: steps the state has seen.
        length_bytes: of the state.
        duration_s: from the first question to the last verified byte.
        transfer_s: of it, from the first chunk asked for to the last one verified.
        chunks_by_source: verified chunks that each source delivered.
        num_kept: chunks kept from an earlier, unfinished pull.
        num_fetched: chunks received and verified, in total.
        num_rejected: chunks that arrived with the wrong bytes.
        num_lost: chunks under way when their source failed.
    """

    step: int
    length_bytes: int
    duration_s: float
    chunks_by_source: Counter[str]
    num_kept: int = 0
    num_fetched: int = 0
    num_rejected: int = 0
    num_lost: int = 0
    transfer_s: float = 0.0

    @property
    def rate_bytes_per_s(self) -> float:
        """At which chunks arrived, 0 if none had to be fetched."""
        num_arrived = sum(self.chunks_by_source.values())
        part = num_arrived / (num_arrived + self.num_kept) if num_arrived else 0.0
        return part * self.length_bytes / self.transfer_s if self.transfer_s else 0.0


@dataclass(slots=True)
class _Offer:
    source: Source
    text: bytes


class ImagePull:
    """One receiver's way to a verified image. Run it from one thread; callbacks arrive from the lines' threads.

    Args:
        crew: the sources.
        is_cancelled: polled; True ends the pull without result.
        is_futile: polled; True gives it up too, but takes what is under way, so that the lines can be used again.
    """

    def __init__(
        self, crew: Crew, is_cancelled: Callable[[], bool], is_futile: Callable[[], bool] = lambda: False
    ) -> None:
        self._crew = crew
        self._changed = crew.changed
        self._is_cancelled = is_cancelled
        self._is_futile = is_futile
        self._num_asking = 0
        self.was_futile = False
        self._image: StateImage | None = None
        self._have: set[int] = set()
        self._wanted: deque[int] = deque()
        self._members: set[Source] = set()
        self._invited: set[Source] = set()
        self._offers: list[_Offer] = []
        self._missed = 0
        self._asked_step = -1
        self.report: PullReport | None = None

    @property
    def length_bytes(self) -> int:
        """Of the image being pulled, 0 as long as that is unknown. From any thread."""
        with self._changed:
            return self._image.manifest.length_bytes if self._image is not None else 0

    @property
    def num_bytes_held(self) -> int:
        """Bytes of it that have arrived and were verified, but for the length of the last chunk. From any thread."""
        with self._changed:
            held = len(self._have) * self._image.manifest.chunk_bytes if self._image is not None else 0
        return min(held, self.length_bytes)

    @property
    def num_chunks_held(self) -> int:
        """Chunks of the present image that have arrived and were verified. From any thread."""
        with self._changed:
            return len(self._have)

    def run(self) -> StateImage | None:
        """Pulls until the image is complete.

        Sources that die are replaced by others, a snapshot that nobody holds any more by a new one; of that, chunks
        that are the same are kept.

        Returns:
            The verified image, or None if cancelled or futile.

        Raises:
            SourcesDisagree: healthy members hold different states and no majority tells which is right.
            ImageRejected: the members agree on an image that this member does not accept.
        """
        began_s = time.monotonic()
        num_failures = 0
        image = None
        while image is None and not self.was_futile and not self._is_cancelled():
            try:
                if self._agree():
                    image = self._fetch()
                if image is not None:
                    image.verify()
            except (SourcesDisagree, ImageRejected):
                num_failures += 1
                if num_failures >= FAILURES_MAX:
                    raise
                self._image = image = None
        self._release()
        if self.report is not None:
            self.report.duration_s = time.monotonic() - began_s
        return image

    # -- agreeing on a snapshot -----------------------------------------------------------------------------------

    def _agree(self) -> bool:
        """Has the sources copy their state at one boundary and learns the manifest; False: try again."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._crew.alive()) or self._is_cancelled(), WAIT_S)
            if not self._crew.alive():
                return False
        for attempt in range(AGREE_TRIES_MAX):
            is_last = attempt == AGREE_TRIES_MAX - 1
            if attempt:
                self._release(self._crew.known())  # what some have copied for nothing
            asked = self._ask_for_snapshots(2**attempt)
            if self._is_cancelled() or not asked:
                return False
            with self._changed:
                offers = [offer for offer in self._offers if offer.source.is_alive]
            if offers and (len(offers) == len(asked) or is_last or not self._missed):
                return self._choose(offers)
        return False

    def _ask_for_snapshots(self, patience: int) -> list[Source]:
        """Asks all sources for the same snapshot and waits for what they say.

        Args:
            patience: factor by which the boundary is moved into the future.
        """
        self._crew.refresh(
            REFRESH_S
        )  # also waits for lines to be opened, which says nothing about round trips
        delay_s = self._crew.refresh(REFRESH_S)
        with self._changed:
            sources = self._crew.alive()
            if not sources:
                return []
            step = self._common_step(sources, patience, MARGIN_S + delay_s)
            self._offers, self._missed = [], 0
            self._asked_step = self._crew.need = step
            for source in sources:
                source.on_offer = self._offer_handler(source)
        for source in sources:
            self._crew.ask(source, Wish.SNAPSHOT, MANIFEST_SLOT, step)

        def is_settled() -> bool:
            answered = len(self._offers) + self._missed
            silent = sum(not source.is_alive for source in sources)
            return answered + silent >= len(sources) or self._is_stuck(sources, step) or self._is_cancelled()

        with self._changed:
            while not self._changed.wait_for(is_settled, WAIT_S):
                pass
        return sources

    def _common_step(self, sources: list[Source], patience: int, ahead_s: float) -> int:
        held = Counter(
            source.status.snapshot
            for source in sources
            if source.status is not None and _can_serve_held(source.status.snapshot, source)
        )
        if held and patience == 1:
            step, count = max(held.items(), key=lambda item: (item[1], item[0]))
            if count == len(sources) or (self._image is not None and step == self._image.manifest.step):
                return step
        statuses = [source.status for source in sources if source.status is not None]
        newest = max(status.committed for status in statuses)
        if all(status.is_standing for status in statuses):
            return newest
        fastest_ns = min((status.step_time_ns for status in statuses if status.step_time_ns), default=10**9)
        # One boundary more than that: there the sources find out how much memory they need, and have it made ready.
        return newest + 2 + int(patience * ahead_s * 1e9 / max(fastest_ns, 1))

    def _is_stuck(self, sources: list[Source], step: int) -> bool:
        """Whether all wait for something else, so that the step will not come."""
        statuses = [source.status for source in sources if source.is_alive and source.status is not None]
        return all(status.is_standing and status.committed < step for status in statuses)

    def _offer_handler(self, source: Source) -> Callable[[Answer], None]:
        """Takes all that a source answers about snapshots, also what was asked so long ago that it no longer counts."""

        def on_answer(answer: Answer) -> None:
            limit = self._crew.settings.limits.manifest_bytes_max
            if answer.outcome is Outcome.OFFER and answer.manifest_bytes > limit:
                self._crew.ban(
                    source, f"{source.member_id} offers a manifest of {answer.manifest_bytes} bytes"
                )
            elif answer.outcome is Outcome.OFFER:
                self._receive_manifest(source, answer)
            else:
                with self._changed:
                    self._missed += answer.step == self._asked_step
                    self._changed.notify_all()

        return on_answer

    def _receive_manifest(self, source: Source, answer: Answer) -> None:
        buffer = allocate_pages(answer.manifest_bytes)[: answer.manifest_bytes]

        def on_done(error: BaseException | None) -> None:
            with self._changed:
                if error is None and answer.step == self._asked_step:
                    self._offers.append(_Offer(source, buffer.tobytes()))
                self._changed.notify_all()

        source.line.receive(buffer, MANIFEST_SLOT, on_done)

    def _choose(self, offers: list[_Offer]) -> bool:
        """Takes the manifest most sources agree on as the truth."""
        groups: dict[bytes, list[_Offer]] = {}
        for offer in offers:
            groups.setdefault(offer.text, []).append(offer)
        ranked = sorted(groups.values(), key=len, reverse=True)
        if len(ranked) > 1 and len(ranked[0]) == len(ranked[1]):
            error = SourcesDisagree(self._difference(ranked[0][0], ranked[1][0]))
            self._crew.event("heal_sources_disagree", reason=str(error))
            raise error
        for deviant in (offer for group in ranked[1:] for offer in group):
            self._crew.ban(deviant.source, self._difference(ranked[0][0], deviant))
        manifest = Manifest.parse(ranked[0][0].text, self._crew.settings.limits)
        self._start(manifest, {offer.source for offer in ranked[0]})
        return True

    def _difference(self, first: _Offer, second: _Offer) -> str:
        who = f"{first.source.member_id} and {second.source.member_id}"
        try:
            a, b = (Manifest.parse(offer.text, self._crew.settings.limits) for offer in (first, second))
        except ImageRejected as error:
            return f"{who} offer different states, one of them malformed: {error}"
        if (a.places, a.chunk_bytes, a.skeleton) != (b.places, b.chunk_bytes, b.skeleton):
            return f"{who} hold states of different structure at step {a.step}"
        pairs = zip(
            a.chunk_hashes, b.chunk_hashes, strict=True
        )  # the structure is the same, so the lengths are
        chunk = next((index for index, (one, other) in enumerate(pairs) if one != other), 0)
        start, stop = a.chunk(chunk)
        touched = [
            i for i, place in enumerate(a.places) if place.offset_bytes < stop and place.stop_bytes > start
        ]
        return f"{who} hold different bytes at step {a.step}, first in tensors {touched[:1]}..{touched[-1:]}"

    def _start(self, manifest: Manifest, members: set[Source]) -> None:
        before, kept = self._image, set[int]()
        report = PullReport(manifest.step, manifest.length_bytes, 0.0, Counter())
        if self.report is not None:
            report.num_fetched, report.num_rejected = self.report.num_fetched, self.report.num_rejected
            report.num_lost = self.report.num_lost
        with self._changed:
            if before is not None and _has_layout_of(before.manifest, manifest):
                old = before.manifest.chunk_hashes
                kept = {i for i in self._have if old[i] == manifest.chunk_hashes[i]}
                self._image = StateImage(before.buffer, manifest)
            else:
                self._image = StateImage.allocate(manifest)
            report.num_kept = len(kept)
            self._have = kept
            self._wanted = deque(i for i in range(manifest.num_chunks) if i not in kept)
            self._members = members
            self.report = report

    # -- fetching -------------------------------------------------------------------------------------------------

    def _fetch(self) -> StateImage | None:
        """Fetches all chunks that are missing; None if no source is left or the pull was cancelled."""
        image, report = self._image, self.report
        assert image is not None, "agreed on before"
        assert report is not None, "made with the image"
        began_s = time.monotonic()
        for source in list(self._members):
            self._feed(source, image)
        while True:
            with self._changed:
                report.transfer_s = time.monotonic() - began_s
                if len(self._have) == image.manifest.num_chunks:
                    return image
                if self._is_cancelled() or not any(source.is_alive for source in self._members):
                    self._wanted.clear()
                    return None
                self.was_futile = self._is_futile()
                if not self.was_futile:
                    self._changed.wait(WAIT_S)
                returned = [source for source in self._crew.alive() if self._holds(source, image)]
                for source in returned:
                    self._invited.add(source)
                    source.on_offer = self._offer_handler(source)
                welcome = [offer.source for offer in self._offers if self._is_welcome(offer, image)]
                self._members.update(welcome)
            if self.was_futile:
                self._drain()
                return None
            for source in returned:
                self._crew.ask(source, Wish.SNAPSHOT, MANIFEST_SLOT, image.manifest.step)
            for source in welcome:
                self._feed(source, image)

    def _drain(self) -> None:
        """Asks for nothing more and waits for what is under way."""
        with self._changed:
            self._wanted.clear()
            # What is asked for after the sources were told to rest would be refused.
            self._changed.wait_for(lambda: not self._num_asking)
        self._crew.rest()
        most = self._crew.settings.chunks_in_flight

        def is_quiet() -> bool:
            return self._is_cancelled() or all(
                len(source.free_slots) >= most for source in self._members if source.is_alive
            )

        with self._changed:
            while not is_quiet():
                self._changed.wait(WAIT_S)

    def _holds(self, source: Source, image: StateImage) -> bool:
        """Whether a source that takes no part, perhaps after its line broke, still has the snapshot."""
        is_new = source not in self._members and source not in self._invited
        return is_new and source.status is not None and source.status.snapshot == image.manifest.step

    def _is_welcome(self, offer: _Offer, image: StateImage) -> bool:
        is_new = offer.source not in self._members and offer.source.is_alive
        return is_new and offer.text == image.manifest.encoded

    def _feed(self, source: Source, image: StateImage) -> None:
        """Asks a source for as many chunks as it has free slots."""
        while True:
            with self._changed:
                is_current = image is self._image and source in self._members and source.is_alive
                if not (is_current and self._wanted and source.free_slots):
                    return
                index, slot = self._wanted.popleft(), source.free_slots.pop()
                self._num_asking += 1
                source.on_answer[slot] = lambda answer: self._crew.ban(
                    source, f"{source.member_id} refused a chunk it had offered"
                )
            try:
                self._ask_chunk(source, image, index, slot)
            finally:
                with self._changed:
                    self._num_asking -= 1
                    self._changed.notify_all()

    def _ask_chunk(self, source: Source, image: StateImage, index: int, slot: int) -> None:
        start, stop = image.manifest.chunk(index)
        source.line.receive(
            image.buffer[start:stop], slot, lambda error: self._on_chunk(source, image, index, slot, error)
        )
        self._crew.ask(source, Wish.CHUNK, slot, image.manifest.step, index)

    def _on_chunk(
        self, source: Source, image: StateImage, index: int, slot: int, error: BaseException | None
    ) -> None:
        is_good = error is None and image.has_chunk(index)
        report = self.report
        assert report is not None, "made with the image"
        with self._changed:
            source.on_answer.pop(slot, None)
            source.free_slots.append(slot)
            if image is not self._image:
                return  # of a snapshot that was given up
            if is_good:
                self._have.add(index)
                report.num_fetched += 1
                report.chunks_by_source[source.member_id] += 1
            else:
                if not self.was_futile:
                    self._wanted.appendleft(index)
                report.num_lost += error is not None
                report.num_rejected += error is None
            self._changed.notify_all()
            others = [] if is_good else [other for other in self._members if other.is_alive]
        if error is None and not is_good:
            self._crew.ban(
                source, f"{source.member_id} sent chunk {index} with other bytes than its manifest says"
            )
        if is_good:
            self._feed(source, image)
        for other in others:
            if other is not source:
                self._feed(other, image)

    def _release(self, sources: Iterable[Source] = ()) -> None:
        members, self._members = self._members, set()
        for source in members.union(sources):
            self._crew.ask(source, Wish.RELEASE)


def _can_serve_held(snapshot: int, source: Source) -> bool:
    """Whether a source holds a snapshot and all gradients since."""
    status = source.status
    if status is None or snapshot == NOTHING:
        return False
    return status.oldest <= snapshot or snapshot == status.committed


def _has_layout_of(a: Manifest, b: Manifest) -> bool:
    return (a.length_bytes, a.chunk_bytes) == (b.length_bytes, b.chunk_bytes)
