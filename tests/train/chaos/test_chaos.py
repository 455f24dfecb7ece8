"""A job of four replica groups and a spare at three sites, and everything that can happen to it, from a seed."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.train.chaos.arena import Arena
from tests.train.chaos.judge import judge, left_behind
from tests.train.chaos.schedule import KINDS, SEATS, SITES, Event, draw_schedule
from tests.train.chaos.stage import ChaosFailure, Options, new_folder
from tests.train.chaos.verdict import history_of

CALM_RUNS = 3


@pytest.fixture
def folder() -> Iterator[Path]:
    """Kept if the test fails."""
    path = new_folder()
    yield path
    if not (path / "failure.txt").exists():
        shutil.rmtree(path)


def play(folder: Path, *, count: int, calm_runs: int, **options: Any) -> None:
    """Plays a schedule and judges what became of the run."""
    shared = set(os.listdir("/dev/shm"))
    arena = Arena(folder, Options(**options))
    failure: str | None = None
    problems: list[str] = []
    table = ""
    try:
        arena.start()
        arena.play(draw_schedule(arena.options.seed, count))
        arena.finish()
        calm = arena.calm_losses(arena.newest_step + 1, calm_runs)
        problems, table = judge(arena, calm)
    except ChaosFailure as error:
        failure = str(error)
        problems, table = judge(arena, [])
    finally:
        arena.close()
    problems += left_behind(folder, shared)
    if failure is not None or problems:
        text = "\n".join([failure or "", *problems, table])
        with (folder / "failure.txt").open("a") as file:
            file.write(text)
        pytest.fail(f"seed {arena.options.seed}, logs in {folder}\n{text}")


@pytest.mark.timeout(400)
def test_a_run_survives_fifteen_events(folder: Path) -> None:
    play(folder, count=15, calm_runs=3, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("form", "seed"), [("batch", 11), ("closure", 4)])
def test_a_run_survives_forty_events(folder: Path, form: str, seed: int) -> None:
    play(folder, count=40, calm_runs=CALM_RUNS, seed=seed, form=form)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("form", "seed"), [("batch", 11), ("closure", 12)])
def test_a_run_survives_two_hundred_events(folder: Path, form: str, seed: int) -> None:
    play(folder, count=200, calm_runs=CALM_RUNS, seed=seed, form=form)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", ["batch", "closure"])
def test_hot_spares_leave_no_trace_in_the_numbers(folder: Path, form: str) -> None:
    digests: list[dict[int, str]] = []
    for kills in (0, 8):
        arena = Arena(folder / str(kills), Options(seed=3, form=form, compute_s=0.02))
        draw = random.Random(4)
        try:
            arena.start()
            for number in range(kills):
                target = draw.choice([name for name in SITES if name in arena.tape.last_commit])
                arena.play([Event(number, "kill", target, draw.uniform(0.0, 0.5), 0.1)])
            arena.finish()
        finally:
            arena.close()
        commits = history_of(arena.tape.lines).commits
        assert {len(commit["counts"]) for commit in commits} == {len(SEATS)}, "no seat was ever empty"
        told = [line for line in arena.tape.lines if "digest" in line and line["kind"] == "commit"]
        digests.append({line["step"]: line["digest"] for line in told})
    shared = sorted(digests[0].keys() & digests[1].keys())
    assert len(shared) > 10
    assert [digests[0][step] for step in shared] == [digests[1][step] for step in shared]


def test_a_schedule_is_drawn_from_its_seed() -> None:
    first = draw_schedule(5, 200)
    assert first == draw_schedule(5, 200)
    assert first != draw_schedule(6, 200)
    assert {event.kind for event in first} == set(KINDS)
