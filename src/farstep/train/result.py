"""How a run ended, for whoever started it; knows neither torch nor the network."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["RunResult", "odd_replicas"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended and where its records are."""

    status: Literal["finished", "interrupted", "failed"]
    folder: Path
    reason: str | None = None
    """Why the run did not finish, in one line."""
    steps: int = 0
    final_loss: float | None = None
    held_out_loss: float | None = None
    replica_hashes: dict[str, str] = field(default_factory=dict)
    """State hash of each replica, by its name such as `east-0`."""

    log_failure: str | None = None
    """Why the event log breaks off before the end, as it does on a full disk."""

    @property
    def events_path(self) -> Path:
        """The event log."""
        return self.folder / "events.jsonl"

    @property
    def report_path(self) -> Path:
        """Where the HTML report goes."""
        return self.folder / "report.html"

    @property
    def is_identical(self) -> bool:
        """Whether every replica ended with the same bits."""
        return len(self.replica_hashes) > 0 and len(set(self.replica_hashes.values())) == 1


def odd_replicas(hashes: dict[str, str]) -> list[str]:
    """Returns the names of the replicas whose hash differs from the most frequent one.

    Example:
        >>> odd_replicas({"east-0": "a", "east-1": "a", "west-0": "b"})
        ['west-0']
    """
    values = list(hashes.values())
    most_frequent = max(values, key=values.count, default="")
    return [name for name, value in hashes.items() if value != most_frequent]
