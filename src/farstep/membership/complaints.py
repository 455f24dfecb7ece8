"""Steps that failed although nobody was seen to die.

If every seat is heard after the report, the members are asked to try once more in a new generation. If that
fails time and again, the one that most others accuse has to go.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from farstep.membership.messages import FailureReport
from farstep.membership.records import Generation
from farstep.membership.roster import Roster

__all__ = ["RETRIES_MAX", "Complaints"]

RETRIES_MAX = 3
"""Generations in a row with the same seats and no progress before somebody is evicted."""

RETRY_DELAY_NS_MAX = 2_000_000_000
"""Longest pause before another retry, if nobody can be evicted."""


@dataclass(frozen=True, slots=True)
class _Complaint:
    report: FailureReport
    at_ns: int


class Complaints:
    """Collects failure reports about the current generation and draws the conclusion."""

    def __init__(self) -> None:
        self._by_reporter: dict[str, _Complaint] = {}
        self._accusations: Counter[str] = Counter()
        self._num_retries = 0
        self._step_at_retry = -1
        self._last_urgent_number = 0
        self._retry_at_ns = 0

    @property
    def num_retries(self) -> int:
        """Generations in a row with the same seats and no progress."""
        return self._num_retries

    @property
    def is_pending(self) -> bool:
        """Whether something was reported that no generation has settled yet."""
        return bool(self._by_reporter)

    def add(self, reporter: str, report: FailureReport, generation: Generation, now_ns: int) -> bool:
        """Notes a report; returns whether it is news about what is running.

        Reports about a generation before the last urgent one are late: everybody has moved on.
        """
        if reporter not in generation or report.generation < self._last_urgent_number:
            return False
        if reporter in self._by_reporter and not report.evict:
            return False
        self._by_reporter[reporter] = _Complaint(report, now_ns)
        for suspect in set(report.suspects) - {reporter}:
            if suspect in generation:
                self._accusations[suspect] += 1
        return True

    def retry_reason(self, generation: Generation, roster: Roster, now_ns: int) -> str | None:
        """Returns why the same members should try again, once all of them have been heard since."""
        if not self._by_reporter or now_ns < self._retry_at_ns:
            return None
        first_ns = min(complaint.at_ns for complaint in self._by_reporter.values())
        for seat in generation.seats:
            item = roster.get(seat.member_id)
            if item is None or item.link is None or item.last_heard_ns < first_ns:
                return None
        reporter, complaint = min(self._by_reporter.items(), key=lambda entry: entry[1].at_ns)
        return f"step failed at {reporter.rpartition('/')[0]}: {complaint.report.reason or 'no reason given'}"

    def convict(self, generation: Generation, min_groups: int) -> tuple[str, str] | None:
        """Returns who has to be evicted, and why."""
        seats = {seat.member_id for seat in generation.seats}
        wrong: Counter[str] = Counter()
        for reporter, complaint in self._by_reporter.items():
            if complaint.report.evict and reporter in seats:
                wrong.update(set(complaint.report.suspects) - {reporter})
        for suspect, count in wrong.items():
            if suspect in generation and count * 2 > len(seats - {suspect}):
                reasons = {
                    complaint.report.reason
                    for complaint in self._by_reporter.values()
                    if suspect in complaint.report.suspects
                }
                return suspect, f"{count} of the others say: {'; '.join(sorted(reasons))}"[:500]
        if self._num_retries < RETRIES_MAX or not self._by_reporter or len(seats) <= min_groups:
            return None
        accused = [(self._accusations[member_id], member_id) for member_id in seats]
        most, suspect = max(accused, key=lambda entry: (entry[0], generation.seat_of(entry[1])))
        if most == 0:
            return None
        return suspect, f"{self._num_retries} retries in a row failed and it was accused most ({most} times)"

    def on_generation(self, generation: Generation, *, is_retry: bool, now_ns: int) -> None:
        """Starts anew with a new generation; remembers how often that has happened without progress."""
        if not generation.is_urgent:
            return  # planned: what was reported is still to be settled
        self._by_reporter.clear()
        self._last_urgent_number = generation.number
        if is_retry:
            self._num_retries += 1
            excess = max(0, self._num_retries - RETRIES_MAX)
            self._retry_at_ns = now_ns + min(50_000_000 << min(excess, 10), RETRY_DELAY_NS_MAX) * bool(excess)
        else:
            self._num_retries = 0
            self._accusations.clear()

    def on_progress(self, step: int) -> None:
        """Notes the newest step anybody has committed."""
        if step <= self._step_at_retry:
            return
        self._step_at_retry = step
        if self._num_retries and not self._by_reporter:
            self._num_retries = 0
            self._accusations.clear()
            self._retry_at_ns = 0
