"""What an event log says about who trained when, as far as the numbers depend on it.

They depend on the seats alone: a step is a function of the state before it and of the number of seats its batch was
dealt to, and the order in which gradients are added goes by seats and sites. Who sat there makes no difference, nor
does how a membership came about.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from farstep.train.errors import ConfigError

__all__ = ["ReplayPlan", "Span", "read_plan"]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive steps with one membership.

    Attributes:
        step: the first of them.
        names: replica groups by seat.
        sites: their failure domains, by seat.
    """

    step: int
    names: tuple[str, ...]
    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A whole run.

    Attributes:
        run_id: of the recorded run.
        spans: in order; each is in force until the next.
        end_step: steps that the run had at its end; None if the log does not say.
        sha256: of the state at its end; None if the log does not say.
    """

    run_id: str
    spans: tuple[Span, ...]
    end_step: int | None = None
    sha256: str | None = None

    @property
    def seats(self) -> int:
        """Most seats at a time."""
        return max(len(span.names) for span in self.spans)

    def to_json(self) -> str:
        """Returns the plan as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Undoes :meth:`to_json`."""
        values = json.loads(text)
        spans = tuple(
            Span(item["step"], tuple(item["names"]), tuple(item["sites"])) for item in values["spans"]
        )
        return cls(values["run_id"], spans, values["end_step"], values["sha256"])


def read_plan(path: str | Path) -> ReplayPlan:
    """Reads an event log.

    Args:
        path: file of JSON lines that coordinators have written.

    Raises:
        ConfigError: it cannot be read, holds no run or several, or a run that cannot be replayed from it.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return plan_of(_lines(text), source=str(path))


def _lines(text: str) -> Iterable[Mapping[str, Any]]:
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # torn by a coordinator that was killed while it wrote
        if isinstance(value, dict) and "kind" in value:
            yield value


def plan_of(lines: Iterable[Mapping[str, Any]], *, source: str = "the event log") -> ReplayPlan:
    """Makes a plan of the lines of an event log.

    Raises:
        ConfigError: as for :func:`read_plan`.
    """
    sites: dict[str, str] = {}
    seats: dict[int, tuple[str, ...]] = {}
    begins: dict[int, int] = {}
    run_ids: dict[str, None] = {}
    end: tuple[int, str] | None = None
    for line in lines:
        match line["kind"]:
            case "member_joined":
                sites[str(line.get("member"))] = str(line.get("site", ""))
            case "generation":
                run_ids[line["run_id"]] = None
                seats[line["number"]] = tuple(line["members"])
            case "regroup":
                if line.get("keeps_deal"):
                    raise ConfigError(
                        f"{source}: step {line['step']} was run again with the batches in hand, because the loop calls "
                        "trainer.step(closure); only loops that call trainer.step(function, batch) can be replayed"
                    )
                begins[line["generation"]] = line["step"]
            case "final_state":
                end = line["step"], line["sha256"]
            case "log_gap":
                raise ConfigError(
                    f"{source}: {line.get('lines')} lines are missing, for want of space on the disk"
                )
    if len(run_ids) != 1:
        raise ConfigError(f"{source} holds {len(run_ids)} runs; it must hold one, from its beginning")
    missing = sorted(set(begins) - set(seats))
    if missing:
        raise ConfigError(
            f"{source} does not say who was in generation {missing[0]}: its beginning is missing"
        )
    spans: list[Span] = []
    for number in sorted(begins):
        span = Span(begins[number], seats[number], tuple(sites.get(name, "") for name in seats[number]))
        if spans and spans[-1].step == span.step:
            spans.pop()  # nothing was committed in it
        if not spans or (span.names, span.sites) != (spans[-1].names, spans[-1].sites):
            spans.append(span)
    if not spans or spans[0].step != 0:
        raise ConfigError(
            f"{source} does not begin at step 0; a run that was resumed cannot be replayed from it"
        )
    return ReplayPlan(next(iter(run_ids)), tuple(spans), *(end if end is not None else (None, None)))
