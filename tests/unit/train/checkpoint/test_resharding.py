"""What some ranks saved, any number of ranks loads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from farstep.train.checkpoint import Checkpoint
from farstep.train.healing.state_codec import state_digest

PROGRAM = Path(__file__).with_name("ranks.py")
ROOT = Path(__file__).parents[4]


def run_ranks(verb: str, ranks: int, folder: Path, outcome: Path) -> list[dict]:
    """Returns the whole state, as each rank that saves or loads has it at the end."""
    meeting = outcome / f"meeting-{verb}-{ranks}"
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, verb, folder, str(rank), str(ranks), meeting, outcome],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)},
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=90)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(said)
    if verb == "fail":
        return []
    return [torch.load(outcome / f"{verb}-{ranks}-{rank}.pt", weights_only=True) for rank in range(ranks)]


def check(tmp_path: Path, saving: int, loading: list[int]) -> None:
    folder = tmp_path / "checkpoints"
    saved = run_ranks("save", saving, folder, tmp_path)
    expected = state_digest(saved[0])
    assert {state_digest(state) for state in saved} == {expected}
    for ranks in loading:
        loaded = run_ranks("load", ranks, folder, tmp_path)
        assert {state_digest(state) for state in loaded} == {expected}
    with Checkpoint(folder) as checkpoint:  # and a process that knows of no ranks
        info = checkpoint.newest()
        assert info.manifest.info == {"ranks": str(saving)}
        assert len([name for name in info.manifest.files if name.endswith(".distcp")]) == saving
        assert state_digest(checkpoint.load(info, {})) == expected


@pytest.mark.timeout(180)
def test_two_ranks_save_and_one_loads(tmp_path: Path) -> None:
    check(tmp_path, 2, [1])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_trainer_resumes_with_any_number_of_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    written = {state_digest(state) for state in run_ranks("write", 2, folder, tmp_path)}
    assert len(written) == 1
    for ranks in (1, 4):
        assert {state_digest(state) for state in run_ranks("resume", ranks, folder, tmp_path)} == written


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_disk_that_fails_on_one_of_two_ranks_stops_neither(tmp_path: Path) -> None:
    run_ranks("save", 2, tmp_path / "checkpoints", tmp_path)
    run_ranks("fail", 2, tmp_path / "checkpoints", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("saving", "loading"), [(2, [4, 2]), (1, [2]), (4, [2, 1])])
def test_any_number_of_ranks_loads_what_any_saved(tmp_path: Path, saving: int, loading: list[int]) -> None:
    check(tmp_path, saving, loading)
