"""The example loops run, alone and together; inside a replica group of several ranks too."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farstep.train.elastic.launch import LocalJob

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run(command: list[str], **env: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["train_plain.py", "train_ddp_style.py"])
def test_an_example_runs_alone(name: str, tmp_path: Path) -> None:
    printed = run(
        [sys.executable, str(EXAMPLES / name)], STEPS="60", EPOCHS="2", CHECKPOINTS=str(tmp_path / "c")
    )
    assert "loss" in printed


def test_a_run_is_resumed_from_its_checkpoint(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    run([sys.executable, str(EXAMPLES / "train_ddp_style.py")], EPOCHS="2", CHECKPOINTS=folder)
    printed = run([sys.executable, str(EXAMPLES / "train_ddp_style.py")], EPOCHS="3", CHECKPOINTS=folder)
    assert "step 64 " in printed
    assert "step 48 " not in printed, "what was done before the checkpoint is not done again"


def test_transformers_runs_alone() -> None:
    pytest.importorskip("transformers")
    assert "loss" in run([sys.executable, str(EXAMPLES / "train_transformers.py")], STEPS="20")


def test_ranks_of_torchrun_hold_one_replica() -> None:
    printed = run(
        [TORCHRUN, "--nproc-per-node=2", "--standalone", str(EXAMPLES / "train_fsdp2.py")], STEPS="40"
    )
    assert "step 40 " in printed


def test_processes_of_torchrun_are_replica_groups(tmp_path: Path) -> None:
    job = LocalJob([], groups=2, folder=tmp_path)
    try:
        job.start_coordinator()
        printed = run(
            [TORCHRUN, "--nproc-per-node=2", "--standalone", str(EXAMPLES / "train_ddp_style.py")],
            FARSTEP_COORDINATOR=f"file:{job.address_file}",
            FARSTEP_RANKS_PER_GROUP="1",
            FARSTEP_GROUP="node",
            EPOCHS="1",
        )
    finally:
        job.close()
    assert printed.count("step 32 ") == 2


def test_a_replica_group_of_two_ranks_dies_as_a_whole(tmp_path: Path) -> None:
    """Two groups of two ranks; one rank of one group is killed, and the other group goes on."""
    job = LocalJob([], groups=2, folder=tmp_path, env={"STEPS": "1000"})
    try:
        job.start_coordinator()
        for name in job.names:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
            example = str(EXAMPLES / "train_fsdp2.py")
            job.command = [TORCHRUN, "--nproc-per-node=2", f"--master-port={port}", example]
            job.start_member(name)
        deadline_s = time.monotonic() + 120
        while "step 40 " not in job.log("group-0") and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert "replica groups 2" in job.log("group-0"), job.log("group-0")
        os.kill(_children(job.members["group-1"].pid)[1], signal.SIGKILL)
        statuses = job.wait(150)
    finally:
        job.close()
    assert statuses["group-0"] == 0
    assert statuses["group-1"] != 0
    assert "step 1000 " in job.log("group-0")
    assert job.log("group-0").rstrip().endswith("replica groups 1")


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]
