"""A job of four replica groups and a spare at three sites, and everything that can happen to it, from a seed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.train.chaos.arena import Arena
from tests.train.chaos.judge import judge, left_behind
from tests.train.chaos.schedule import KINDS, draw_schedule
from tests.train.chaos.stage import ChaosFailure, Options, new_folder

CALM_RUNS = 5


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
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("form", "seed"), [("batch", 11), ("closure", 12)])
def test_a_run_survives_two_hundred_events(folder: Path, form: str, seed: int) -> None:
    began_s = time.monotonic()
    play(folder, count=200, calm_runs=CALM_RUNS, seed=seed, form=form)
    assert time.monotonic() - began_s < 3600


def test_a_schedule_is_drawn_from_its_seed() -> None:
    first = draw_schedule(5, 200)
    assert first == draw_schedule(5, 200)
    assert first != draw_schedule(6, 200)
    assert {event.kind for event in first} == set(KINDS)
