"""Judges a chaos run by what its members and its coordinators said: pure functions over lines."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.train.chaos.tape import Line

__all__ = ["History", "check_samples", "explanation", "history_of", "loss_deviation", "stall_after", "table"]

COMMON = ("loss", "norm", "counts", "data", "generation", "is_applied")
"""What all members must say alike about the commit of a step."""


@dataclass(frozen=True, slots=True)
class History:
    """What was committed.

    Attributes:
        commits: one line for each step, in order.
        first_s: when the first member committed the step.
        problems: contradictions.
    """

    commits: list[Line]
    first_s: list[float]
    problems: list[str]


def history_of(lines: Iterable[Line]) -> History:
    """Puts together what all members committed; every member must have made every step alike."""
    by_step: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "commit":
            by_step[line["step"]].append(line)
    problems = []
    steps = sorted(by_step)
    if steps != list(range(len(steps))):
        problems.append(f"steps are missing: {sorted(set(range(steps[-1] + 1)) - set(steps))[:20]}")
    for step in steps:
        first, *others = by_step[step]
        for other in others:
            problems += [
                f"two histories: step {step}: {key} is {first[key]} on {first['name']} "
                f"and {other[key]} on {other['name']}"
                for key in COMMON
                if other[key] != first[key]
            ]
        digests = {line["digest"]: line["name"] for line in by_step[step] if "digest" in line}
        if len(digests) > 1:
            problems.append(f"replicas differ after step {step}: {digests}")
    return History(
        commits=[by_step[step][0] for step in steps],
        first_s=[min(line["t"] for line in by_step[step]) for step in steps],
        problems=problems,
    )


def check_samples(lines: Iterable[Line], commits: Sequence[Line], num_samples: int) -> list[str]:
    """Adds up the samples that went into every committed step: within an epoch each exactly once."""
    held: dict[tuple[int, int, int], list[int]] = {}
    for line in lines:
        if line["kind"] == "try":
            held[line["step"], line["g"], line["seat"]] = line["samples"]
    problems: list[str] = []
    used: set[int] = set()
    for commit in commits:
        for seat, count in enumerate(commit["counts"]):
            if not count:
                continue
            where = commit["step"], commit["generation"], seat
            samples = held.get(where)
            if samples is None or len(samples) != count:
                problems.append(f"step {where[0]}: seat {seat} had {samples}, but {count} samples counted")
                continue
            again = used.intersection(samples)
            if again:
                problems.append(f"step {where[0]}: samples used twice in an epoch: {sorted(again)[:10]}")
            used.update(samples)
        if len(used) == num_samples:
            used.clear()
    return problems


def loss_deviation(
    commits: Sequence[Line], calm: Sequence[Sequence[float]], *, parts: int = 4
) -> tuple[float, float, float]:
    """Compares the loss curve with undisturbed ones that differ by their seed.

    Returns:
        Largest distance of a part's mean loss from the mean of the calm runs, the largest spread (standard
        deviation) of the calm runs in a part, and their least mean loss in a part.
    """
    losses = [float.fromhex(commit["loss"]) for commit in commits]
    size = len(losses) // parts
    distances, spreads, levels = [], [], []
    for part in range(parts):
        span = slice(part * size, (part + 1) * size)
        means = [statistics.fmean(curve[span]) for curve in calm]
        distances.append(abs(statistics.fmean(losses[span]) - statistics.fmean(means)))
        spreads.append(statistics.stdev(means))
        levels.append(statistics.fmean(means))
    return max(distances), max(spreads), min(levels)


def stall_after(history: History, at_s: float, until_s: float) -> float:
    """Longest time between two steps of the run from a moment until another, in seconds."""
    before = [t for t in history.first_s if t <= at_s][-1:]
    inside = [t for t in history.first_s if at_s < t <= until_s]
    after = [t for t in history.first_s if t > until_s][:1]
    times = [*before, *inside, *after]
    return max((b - a for a, b in itertools.pairwise(times)), default=0.0)


def _names(line: Line, member_id: str) -> bool:
    name = member_id.rpartition("/")[0]
    text = " ".join([str(line.get("reason", "")), *map(str, line.get("changes", ()))])
    return line.get("member_id") == member_id or (line["kind"] == "generation" and name in text)


def explanation(kind: str, lasts_s: float, members: Sequence[str], log: Sequence[Line]) -> str | None:
    """Finds what the event log says about an event.

    Args:
        kind: of the event.
        lasts_s: how long it lasted.
        members: identities of those that were hit.
        log: lines since it happened.

    Returns:
        What was found; `absorbed` if nothing needs to be there and nothing is; None if something is missing.
    """
    lost = ("member_lost", "death_certificate", "member_disconnected", "generation")
    match kind:
        case "kill" | "site_loss" | "drain" | "notice":
            found = [_first(log, lost, member_id) for member_id in members]
            return None if None in found else ", ".join(dict.fromkeys(str(kind) for kind in found))
        case "hang" | "line_block" | "line_block_up" | "line_block_down":
            found = [_first(log, lost, member_id) for member_id in members]
            must = lasts_s > LIMIT_S
            if None not in found:
                return ", ".join(dict.fromkeys(str(kind) for kind in found))
            return None if must else "absorbed"
        case "join":
            return _kind(log, "member_joined")
        case "coordinator_kill" | "coordinator_move":
            return _kind(log, "coordinator_start")
        case "coordinator_hang":
            return _kind(log, "coordinator_paused", "coordinator_start") or (
                "absorbed" if lasts_s < 1 else None
            )
        case "coordinator_partition":
            return _kind(log, "member_disconnected", "coordinator_start") or "absorbed"
        case "path_block" | "path_block_one_way":
            return _kind(log, "step_failed", "failure_report") or "absorbed"
        case "disk_coordinator":
            return _kind(log, "log_gap") or "absorbed"
        case "disk_member":
            return _kind(log, "checkpoint_failed") or "absorbed"
        case "line_cut":
            found = [_first(log, lost, member_id) for member_id in members]
            return str(found[0]) if found[0] else "absorbed"
        case _:  # pauses, slow members, lost packets and wall clocks change nothing that needs telling
            return "absorbed"


LIMIT_S = 2.2
"""A fault of this length is certainly longer than the silence limit, as counted by a coordinator that has pauses."""


def _first(log: Sequence[Line], kinds: Sequence[str], member_id: str) -> str | None:
    return next((line["kind"] for line in log if line["kind"] in kinds and _names(line, member_id)), None)


def _kind(log: Sequence[Line], *kinds: str) -> str | None:
    return next((line["kind"] for line in log if line["kind"] in kinds), None)


def table(rows: Sequence[Sequence[Any]]) -> str:
    """Lays out rows of text."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
