"""Power fails at every instant: the newest checkpoint that was complete is there, and loads."""

import shutil
from pathlib import Path

import pytest

from farstep.train.checkpoint import Checkpoint
from tests.unit.train.checkpoint.power_loss import Disk, RecordingFiles, draws
from tests.unit.train.checkpoint.states import loaded_newest, state_of


def recorded_run(root: Path, *, steps: int, keep_last: int) -> list:
    """Saves at every step into a folder that has to be made first; returns the log of the disk."""
    files = RecordingFiles()
    with Checkpoint(root / "run" / "checkpoints", keep_last=keep_last, files=files) as checkpoint:
        checkpoint.on_event = lambda kind, fields: files.note(kind, fields["step"])
        for step in range(1, steps + 1):
            assert checkpoint.save(step, state_of(step, size=100)).wait(30)
    assert [operation[1] for operation in files.log if operation[0] == "checkpoint_saved"] == [
        *range(1, steps + 1)
    ]
    return files.log


def check_all_cuts(root: Path, log: list, left: Path, *, seeds: int) -> set[int | None]:
    """Cuts the power before every operation and after the last; returns the steps that were found."""
    found = set()
    for cut in range(len(log) + 1):
        for name, draw in draws(seeds).items():
            disk, complete = Disk(root), 0
            for operation in log[:cut]:
                if operation[0] == "checkpoint_saved":
                    complete = operation[1]
                elif operation[0] != "checkpoint_removed":
                    disk.apply(operation)
            disk.after_power_loss(left, draw)
            info = loaded_newest(left / "run" / "checkpoints", size=100)
            step = 0 if info is None else info.step
            assert step >= complete, f"cut before operation {cut} ({log[cut : cut + 1]}), {name}"
            assert step <= complete + 1
            found.add(step)
            shutil.rmtree(left)
    return found


def test_a_loss_of_power_at_any_instant_leaves_the_newest_complete_one(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    log = recorded_run(root, steps=3, keep_last=1)
    assert len(log) > 40
    assert check_all_cuts(root, log, tmp_path / "left", seeds=2) == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_loss_of_power_leaves_it_however_the_disk_orders_its_writes(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    log = recorded_run(root, steps=4, keep_last=2)
    assert check_all_cuts(root, log, tmp_path / "left", seeds=40) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("kind", ["sync", "sync_folder"])
def test_the_model_of_the_disk_finds_a_missing_sync(tmp_path: Path, kind: str) -> None:
    """Were any one kind of sync left out, a cut would be found that loses a complete checkpoint."""
    root = tmp_path / "disk"
    root.mkdir()
    log = [entry for entry in recorded_run(root, steps=2, keep_last=1) if entry[0] != kind]
    with pytest.raises(AssertionError, match="cut before operation"):
        check_all_cuts(root, log, tmp_path / "left", seeds=0)
