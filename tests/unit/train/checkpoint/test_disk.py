import errno
import json
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from farstep.train.checkpoint import Checkpoint, CheckpointError, CheckpointInfo
from farstep.train.checkpoint.files import Files, OutputFile
from farstep.train.errors import ConfigError
from tests.unit.train.checkpoint.states import (
    FailingFiles,
    assert_is_state_of,
    empty_like,
    loaded_newest,
    state_of,
)


def saved(checkpoint: Checkpoint, step: int, state=None) -> CheckpointInfo:
    handle = checkpoint.save(step, state_of(step) if state is None else state, info={"run": "r"})
    assert handle.wait(30)
    assert handle.error is None
    return handle.info


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*"))


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    with Checkpoint(tmp_path / "a" / "b") as checkpoint:
        info = saved(checkpoint, 7)
        assert (info.step, info.manifest.info) == (7, {"run": "r"})
        found = checkpoint.newest()
        assert found == info
        template = empty_like(state_of(1))
        state = checkpoint.load(found, template)
    assert_is_state_of(state, 7)
    assert state["model"]["weight"] is state["model"]["tied"]
    assert type(state["model"]).__name__ == "OrderedDict"
    assert state["user"]["tuple"] == (1, None, True)
    assert state["optimizer"]["state"][0]["step"].item() == 7


def test_tensors_of_the_run_are_filled_in_place(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as checkpoint:
        info = saved(checkpoint, 3)
        template = empty_like(state_of(1))
        weight = template["model"]["half"]
        state = checkpoint.load(info, template)
    assert state["model"]["half"].data_ptr() == weight.data_ptr()
    assert torch.equal(weight, state_of(3)["model"]["half"])


def test_tensors_that_the_run_does_not_have_yet_are_made(tmp_path: Path) -> None:
    """An optimizer has no state before its first step."""
    with Checkpoint(tmp_path) as checkpoint:
        info = saved(checkpoint, 3)
        assert_is_state_of(checkpoint.load(info, {"model": {}}), 3)


def test_a_model_of_another_shape_is_named(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as checkpoint:
        info = saved(checkpoint, 3)
        template = {"model": {"half": torch.zeros(4, 4)}}
        with pytest.raises(
            CheckpointError, match=r"model\.half has shape \(3, 10\) in the checkpoint and \(4, 4\)"
        ):
            checkpoint.load(info, template)


def test_plain_torch_can_read_it(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as checkpoint:
        info = saved(checkpoint, 5)
    state = {"model.half": torch.zeros(3, 10, dtype=torch.bfloat16)}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(state, checkpoint_id=info.path)
    assert torch.equal(state["model.half"], state_of(5)["model"]["half"])


def test_training_may_change_the_state_as_soon_as_save_returns(tmp_path: Path) -> None:
    files = GatedFiles()
    with Checkpoint(tmp_path, files=files) as checkpoint:
        state = state_of(4)
        handle = checkpoint.save(4, state)
        state["model"]["weight"].zero_()
        state["ledger"]["owed"].append([0, 1])
        assert not handle.done()
        files.gate.set()
        handle.wait(30)
        assert_is_state_of(checkpoint.load(handle.info, {}), 4)


class GatedFiles(Files):
    """A disk that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def create(self, path: Path) -> OutputFile:
        assert self.gate.wait(30)
        return super().create(path)


def test_a_save_that_comes_too_early_is_left_out(tmp_path: Path) -> None:
    files, events = GatedFiles(), []
    with Checkpoint(tmp_path, files=files) as checkpoint:
        checkpoint.on_event = lambda kind, fields: events.append((kind, fields))
        first = checkpoint.save(1, state_of(1))
        second = checkpoint.save(2, state_of(2))
        assert second.done()
        assert "still being written" in str(second.error)
        assert not checkpoint.wait(0)
        files.gate.set()
        assert first.wait(30)
        assert checkpoint.wait(30)
        saved(checkpoint, 3)
    assert steps(tmp_path) == [1, 3]
    assert [kind for kind, _ in events] == ["checkpoint_failed", "checkpoint_saved", "checkpoint_saved"]
    assert events[0][1] == {"step": 2, "cause": "the one before is still being written"}
    assert events[1][1]["step"] == 1
    assert events[1][1]["bytes"] > 4000


def test_due_is_a_function_of_the_step_alone(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, every_steps=5)
    assert [step for step in range(12) if checkpoint.is_due(step)] == [5, 10]
    assert not Checkpoint(tmp_path).is_due(5)
    for settings, message in [
        ({"every_steps": 0}, "every_steps is 0"),
        ({"keep_last": 0}, "keep_last is 0"),
        ({"keep_every": 0}, "keep_every is 0"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Checkpoint(tmp_path, **settings)


def test_old_ones_go_and_milestones_stay(tmp_path: Path) -> None:
    events = []
    with Checkpoint(tmp_path, keep_last=2, keep_every=4) as checkpoint:
        checkpoint.on_event = lambda kind, fields: events.append((kind, fields.get("step")))
        for step in range(1, 10):
            saved(checkpoint, step)
    assert steps(tmp_path) == [4, 8, 9]
    assert [step for kind, step in events if kind == "checkpoint_removed"] == [1, 2, 3, 5, 6, 7]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_broken_one_does_not_count_as_one_to_keep(tmp_path: Path) -> None:
    with Checkpoint(tmp_path, keep_last=2) as checkpoint:
        for step in (1, 2, 3):
            info = saved(checkpoint, step)
        (info.path / "manifest.json").unlink()
        saved(checkpoint, 4)
        assert steps(tmp_path) == [2, 3, 4]  # 3 is broken: 2 is needed
        saved(checkpoint, 5)
        assert steps(tmp_path) == [4, 5]


def test_the_newest_whole_one_is_never_removed(tmp_path: Path) -> None:
    """Not by a save whose bytes the disk did not keep."""

    class Forgetful(Files):
        def rename(self, path: Path, new_path: Path) -> None:
            super().rename(path, new_path)
            if new_path.name == "step-0000000002":
                (new_path / "__0_0.distcp").write_bytes(b"")

    with Checkpoint(tmp_path, keep_last=1, files=Forgetful()) as checkpoint:
        saved(checkpoint, 1)
        handle = checkpoint.save(2, state_of(2))
        handle.wait(30)
        assert "does not read back" in str(handle.error)
    assert loaded_newest(tmp_path).step == 1


def test_going_back_and_saving_a_step_again(tmp_path: Path) -> None:
    with Checkpoint(tmp_path, keep_last=5) as checkpoint:
        saved(checkpoint, 2)
        first = saved(checkpoint, 4, state_of(40))
        second = saved(checkpoint, 4)
        assert first.path.name == "step-0000000004"
        assert second.path.name == "step-0000000004-2"
        assert checkpoint.newest() == second
        assert checkpoint.newest(before=second) == first
        assert checkpoint.newest(before=first).step == 2
        assert checkpoint.newest(before=checkpoint.newest(before=first)) is None


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_whatever_operation_of_the_disk_fails_training_goes_on(tmp_path: Path, error: int) -> None:
    counting = FailingFiles()
    with Checkpoint(tmp_path / "count", files=counting) as checkpoint:
        saved(checkpoint, 1)
    assert counting.count > 12
    for fails_at in range(1, counting.count + 1):
        folder, events = tmp_path / str(fails_at), []
        with Checkpoint(folder) as checkpoint:
            saved(checkpoint, 1)
        files = FailingFiles(fails_at, error)
        with Checkpoint(folder, files=files) as checkpoint:
            checkpoint.on_event = lambda kind, fields, events=events: events.append((kind, fields))
            handle = checkpoint.save(2, state_of(2))
            assert handle.wait(30)
            info = loaded_newest(folder)
            assert info.step in (1, 2)
            if handle.error is not None:
                assert [kind for kind, _ in events] == ["checkpoint_failed"]
                assert "No space left" in events[0][1]["cause"] or "Input/output" in events[0][1]["cause"]
            else:  # nothing was left to fail
                assert info.step == 2
            files.fails_at = -1
            saved(checkpoint, 3)
        assert loaded_newest(folder).step == 3
        assert not list(folder.glob(".writing*"))


def test_a_folder_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "file" / "checkpoints")
    (tmp_path / "file").write_text("")  # put in its way later: at the start it is refused
    handle = checkpoint.save(1, state_of(1))
    assert handle.wait(30)
    assert isinstance(handle.error, OSError)
    assert checkpoint.newest() is None


def test_a_state_that_cannot_be_written_is_an_event(tmp_path: Path) -> None:
    events = []
    checkpoint = Checkpoint(tmp_path)
    checkpoint.on_event = lambda kind, fields: events.append(fields["cause"])
    handle = checkpoint.save(1, {"f": object()})
    assert handle.done()
    assert "state['f'] is a object" in events[0]


def test_a_listener_that_fails_does_no_harm(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as checkpoint:
        checkpoint.on_event = lambda kind, fields: 1 / 0
        saved(checkpoint, 1)
    assert loaded_newest(tmp_path).step == 1


def test_what_killed_writers_left_is_swept_away(tmp_path: Path) -> None:
    import os
    import socket

    host = socket.gethostname()
    gone = tmp_path / f".writing-{host}-999999999-00ff-11"
    same_number = tmp_path / f".writing-{host}-{os.getpid()}-00ff-11"
    alive = tmp_path / f".writing-{host}-{os.getppid()}-00ff-11"
    elsewhere, long_ago = tmp_path / ".writing-other-1-00ff-11", tmp_path / ".removing-other-1-00ff-12"
    for path in (gone, same_number, alive, elsewhere, long_ago):
        path.mkdir()
        (path / "part").write_bytes(b"x")
    for path in (long_ago / "part", long_ago):
        os.utime(path, (0, 0))
    with Checkpoint(tmp_path) as checkpoint:
        saved(checkpoint, 1)
    assert sorted(tmp_path.glob(".*")) == sorted([alive, elsewhere])


def test_names_of_tensors_are_readable_and_unique(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as checkpoint:
        state = {"a": {0: torch.zeros(1), "0": torch.ones(1)}, "b": [torch.zeros(2)], "c": torch.ones(3)}
        info = saved(checkpoint, 1, state)
        names = json.loads((info.path / "state.json").read_text())["names"]
        assert names == ["a.0", "a.0#2", "b.0", "c"]
        loaded = checkpoint.load(info, {})
    assert loaded["a"]["0"].item() == 1


class Replica:
    """A state as the trainer offers it."""

    def __init__(self, step: int) -> None:
        self.state = state_of(step)
        self.restored = None
        self.committed = step

    def capture(self) -> dict:
        return self.state

    def restore(self, state: dict) -> None:
        self.restored = state


def test_a_trainer_saves_what_is_due_and_resumes_from_the_newest(tmp_path: Path) -> None:
    events = []
    with Checkpoint(tmp_path, every_steps=2) as checkpoint:
        checkpoint.attach(ranks=1, on_event=lambda *event: events.append(event), info={"group": "a-0"})
        assert not checkpoint.load_newest(Replica(1))
        for step in range(1, 6):
            checkpoint.at_boundary(step, Replica(step), is_writer=step != 2)
            checkpoint.wait()
        resumed = Replica(9)
        assert checkpoint.load_newest(resumed)
    assert steps(tmp_path) == [4]
    assert_is_state_of(resumed.restored, 4)
    assert [kind for kind, _ in events] == ["checkpoint_saved", "checkpoint_loaded"]
    info = checkpoint.newest().manifest.info
    assert info["group"] == "a-0"
    assert info["command"] == sys.orig_argv


def test_a_checkpoint_that_is_due_too_early_is_made_up_for(tmp_path: Path) -> None:
    files = GatedFiles()
    with Checkpoint(tmp_path, every_steps=2, files=files) as checkpoint:
        for step in (1, 2, 3, 4, 5):
            checkpoint.at_boundary(step, Replica(step), is_writer=True)
        files.gate.set()
        checkpoint.wait()
        for step in (6, 7, 8, 9):  # 6 is due, and makes up for 4
            checkpoint.at_boundary(step, Replica(step), is_writer=True)
            checkpoint.wait()
    assert steps(tmp_path) == [2, 6, 8]


@pytest.mark.parametrize(("trouble", "found"), [("", [2, 4]), ("torn", [2]), ("replaced", [2])])
def test_what_was_due_at_the_end_is_written_before_it_closes(
    tmp_path: Path, trouble: str, found: list[int]
) -> None:
    files = GatedFiles()
    with Checkpoint(tmp_path, every_steps=2, files=files) as checkpoint:
        for step in (1, 2, 3, 4):
            replica = Replica(step)
            checkpoint.at_boundary(step, replica, is_writer=True)
        if trouble == "torn":  # an exception has left the state somewhere in a step
            checkpoint.forget()
        if trouble == "replaced":
            replica.committed = 7
        files.gate.set()
    assert steps(tmp_path) == found


@pytest.mark.parametrize("last", [4, 5])
def test_what_is_demanded_at_the_end_is_written_once(tmp_path: Path, last: int) -> None:
    with Checkpoint(tmp_path, every_steps=2) as checkpoint:
        for step in range(1, last + 1):
            replica = Replica(step)
            checkpoint.at_boundary(step, replica, is_writer=True)
            checkpoint.wait()
        checkpoint.demand()
    assert steps(tmp_path) == sorted({2, 4, last})


def test_a_checkpoint_that_goes_while_it_is_loaded_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpoint(tmp_path) as checkpoint:
        saved(checkpoint, 1)
        newest = saved(checkpoint, 2)
        find = checkpoint.folder.newest

        def find_and_lose(**what) -> tuple:
            found = find(**what)
            (newest.path / "__0_0.distcp").unlink(missing_ok=True)
            return found

        monkeypatch.setattr(checkpoint.folder, "newest", find_and_lose)
        resumed = Replica(9)
        assert checkpoint.load_newest(resumed)
    assert_is_state_of(resumed.restored, 1)


def test_a_checkpoint_of_another_model_is_an_error_not_an_older_one(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as checkpoint:
        saved(checkpoint, 1)
        other = Replica(9)
        other.state["model"]["half"] = torch.zeros(2)
        with pytest.raises(CheckpointError, match="half has shape"):
            checkpoint.load_newest(other)


def test_processes_that_do_not_know_each_other_cannot_save_together(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has 2 processes and torch\.distributed 1; call"):
        Checkpoint(tmp_path).attach(ranks=2, on_event=lambda kind, fields: None, info={})
