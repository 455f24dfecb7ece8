"""Holds a chaos run against what was promised, and tells what happened to it as a table."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.train.chaos import verdict
from tests.train.chaos.member import SAMPLES
from tests.train.chaos.stage import Stage

__all__ = ["judge", "left_behind"]

NOISE_FACTOR = 4.0
"""A curve within so many standard deviations of undisturbed ones does not differ from them."""

LOSS_TOLERANCE = 0.005
"""Nor does one within this part of their loss: three of them tell little about how far a fourth would be off."""

TRACE = "Traceback (most recent call last)"


def judge(arena: Stage, calm: Sequence[Sequence[float]]) -> tuple[list[str], str]:
    """Judges a run that has ended.

    Args:
        arena: where it ran.
        calm: loss curves of undisturbed runs of as many steps; empty to leave out the comparison.

    Returns:
        Problems, and a table of what was injected and what came of it.
    """
    lines = [line for line in arena.tape.lines if not line["name"].startswith("solo")]
    history = verdict.history_of(lines)
    problems = list(history.problems[:20])
    problems += verdict.check_samples(lines, history.commits, SAMPLES)[:20]
    if calm:
        distance, spread, loss = verdict.loss_deviation(history.commits, calm)
        if distance > max(NOISE_FACTOR * spread, LOSS_TOLERANCE * loss):
            problems.append(
                f"the loss is {distance:.4g} off that of undisturbed runs, {loss:.4g}, which spread by {spread:.4g}"
            )
        ends = {line["name"]: line for line in lines if line["kind"] == "end"}
        seats = [line for line in ends.values() if line["committed"] == len(history.commits)]
        if len(seats) < 4 or len({line["digest"] for line in seats}) != 1:
            problems.append(f"replicas differ at the end: {ends}")
    if arena.tape.garbage:
        problems.append(f"said and not understood: {arena.tape.garbage[:3]!r}")
    for path in sorted(arena.folder.glob("*.log")):
        if TRACE in (text := path.read_text(errors="replace")):
            problems.append(f"{path.name}: {text[text.index(TRACE) :][:1500]}")
    log = arena.event_log()
    rows: list[Sequence[object]] = [("event", "kind", "target", "lasts s", "step", "stall s", "in the log")]
    for note in arena.injected:
        found = verdict.explanation(
            note.event.kind, note.event.lasts_s, [m for m in note.members if m], log[note.log_at :]
        )
        is_excused = found is None and _is_log_full(arena, note.at_s)
        if found is None and not is_excused:
            problems.append(f"event {note.event.number} is not explained in the event log: {note.event}")
        stall_s = verdict.stall_after(history, note.at_s, note.at_s + max(2.5, note.event.lasts_s))
        rows.append(
            (
                note.event.number,
                note.event.kind,
                note.event.target,
                f"{note.event.lasts_s:.2f}",
                note.step,
                f"{stall_s:.2f}",
                note.said or found or ("log without space" if is_excused else "MISSING"),
            )
        )
    return problems, verdict.table(rows)


def _is_log_full(arena: Stage, at_s: float) -> bool:
    """Whether the event log could not be written around a moment."""
    return any(
        note.at_s - 5.0 <= at_s <= note.at_s + note.event.lasts_s + 1.0
        for note in arena.injected
        if note.event.kind == "disk_coordinator"
    )


def left_behind(folder: Path, shared_before: set[str]) -> list[str]:
    """Looks for processes, shared memory and files that should be gone; ends the processes."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"FARSTEP_CHAOS=" + os.fsencode(folder) in environment:
            found.append(f"process {entry.name} is left: {(entry / 'cmdline').read_bytes()!r}")
            os.kill(int(entry.name), signal.SIGKILL)
    ours = [name for name in set(os.listdir("/dev/shm")) - shared_before if "farstep" in name]
    found += [f"shared memory is left: {name}" for name in ours]
    # torch makes a folder for its compiler when it is loaded, and never removes it
    files = [path for path in (folder / "tmp").iterdir() if not path.name.startswith("torchinductor")]
    found += [f"a temporary file is left: {path}" for path in files]
    complete = [path for path in (folder / "checkpoints").iterdir() if path.name.startswith("step-")]
    others = {path.name for path in (folder / "checkpoints").iterdir()} - {path.name for path in complete}
    if others:
        found.append(f"left in the folder of checkpoints: {sorted(others)}")
    return found
