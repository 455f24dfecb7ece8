"""Runs that are killed and resumed end as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.train.conftest import TINY

STEPS = 300
SITES = '[[sites]]\nname = "east"\nreplica_groups = 1\n[[sites]]\nname = "west"\nreplica_groups = 1\n'


def farstep(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [sys.executable, "-m", "farstep", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**environment, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, out + err
    return out + err


def configured(tmp_path: Path, name: str, every: int) -> Path:
    path = tmp_path / f"{name}.toml"
    text = TINY.format(steps=STEPS).replace(
        "[run]", f'[run]\ncheckpoint_every_steps = {every}\nout = "{name}"', 1
    )
    path.write_text(text + SITES)
    return path


def run_folder(tmp_path: Path, name: str, number: int = 0) -> Path:
    return sorted((tmp_path / name).iterdir())[number]


def events(folder: Path, kind: str) -> list[dict]:
    found = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [event for event in found if event["kind"] == kind]


def kill_after_checkpoint(process: subprocess.Popen[str], runs: Path) -> None:
    """Kills everything at once, as a loss of power does, some time after a checkpoint."""
    deadline = time.monotonic() + 90
    while not [log for log in runs.glob("*/events.jsonl") if '"action":"saved"' in log.read_text()]:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_run_is_resumed_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    configured(tmp_path, "calm", 0)
    finished(farstep("train", "calm.toml", "--plain", "--no-report", cwd=tmp_path))
    calm = run_folder(tmp_path, "calm")
    assert not (calm / "checkpoints").exists()

    configured(tmp_path, "killed", 10)
    kill_after_checkpoint(
        farstep("train", "killed.toml", "--plain", "--no-report", cwd=tmp_path), tmp_path / "killed"
    )
    killed = run_folder(tmp_path, "killed")
    shown = finished(farstep("resume", killed, "--check", cwd=tmp_path))
    newest = int(shown.split("step ")[1].split()[0])
    assert 10 <= newest < STEPS
    assert "every byte matches its hash" in shown
    assert len(list((tmp_path / "killed").iterdir())) == 1

    said = finished(farstep("resume", killed, "--plain", cwd=tmp_path))
    assert "hold bit-identical parameters" in " ".join(said.split())
    resumed = run_folder(tmp_path, "killed", 1)
    (begin,), (end,), (before,) = (
        events(resumed, "run_start"),
        events(resumed, "run_end"),
        events(calm, "run_end"),
    )
    assert begin["first_step"] == newest
    assert end["replica_hashes"] == before["replica_hashes"]
    assert (end["final_loss"], end["held_out_loss"]) == (before["final_loss"], before["held_out_loss"])
    assert [event["step"] for event in events(resumed, "step")] == list(range(newest, STEPS))
    assert events(resumed, "checkpoint")[0]["action"] == "loaded"
    saved = [event["step"] for event in events(resumed, "checkpoint") if event["action"] == "saved"]
    assert saved[-1] == STEPS  # those on the way may be late, when the disk is slower than the steps
    assert saved == sorted(set(saved))
    assert saved[0] > newest
    assert (resumed / "report.html").exists()

    for folder in (killed, resumed):  # both show all checkpoints
        shown = finished(farstep("resume", folder, cwd=tmp_path))
        assert "step       300 of 300" in shown
        assert "The run is complete" in shown

    newest_path = sorted((killed / "checkpoints").iterdir())[-1]
    os.truncate(newest_path / "__0_0.distcp", 100)
    shown = finished(farstep("resume", killed, "--check", cwd=tmp_path))
    assert "broken     step-0000000300: __0_0.distcp has 100 bytes, of" in shown
    assert f"step       {([newest, *saved])[-2]} of 300" in shown


def test_what_cannot_be_resumed_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, status, message in [
        (["nowhere"], 2, "error: nowhere is not a folder"),
        (["empty"], 4, "error: empty holds no checkpoint"),
    ]:
        process = farstep("resume", *arguments, cwd=tmp_path)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (status, "")
        assert err.strip() == message
