"""Members that go: without a seat nobody waits for them, and a mistake in one's own loop ends nobody else's run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from farstep.train.checkpoint import Checkpoint, CheckpointFolder
from farstep.train.elastic.trainer import Trainer
from farstep.train.healing import Healing
from farstep.train.run import Run
from tests.train.elastic.groups import Groups, small_model

DATA = TensorDataset(
    torch.randn(64, 6, generator=torch.Generator().manual_seed(1)),
    torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(2)),
)


class EndlessHealing(Healing):
    """Never gets the state."""

    def follow(self, is_done: Callable[[], bool]) -> None:
        following.set()
        while not is_done():
            self._is_closed.wait(0.01)


following = threading.Event()


class Case:
    """Two groups that train until the third one has gone."""

    def __init__(self, *, healing: Any, groups: int = 2) -> None:
        following.clear()
        self.groups = Groups(healing=healing, groups=groups, min_groups=1, spares=1)
        self.has_gone = threading.Event()

    def work(self, run: Run) -> int:
        model = small_model(1)
        trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1))
        formation: Any = trainer._formation
        formation._thresholds = replace(formation._thresholds, leave_s=1e9)  # no way out but the right one
        for batch in run.shard(DATA, batch_size=12, epochs=1_000_000):
            trainer.step(lambda b=batch: nn.functional.cross_entropy(model(b[0]), b[1]))
            if self.has_gone.wait(0.005):
                run.end()
        return trainer.committed

    def end(self, name: str) -> None:
        """Waits for the member that is to go, and then for the others."""
        try:
            self.groups.join(name)
        finally:
            self.has_gone.set()
            self.groups.join()
            self.groups.close()
        for error in self.groups.errors.values():
            raise error

    def drain(self, name: str, way: str) -> None:
        if way == "drain":
            self.groups.hub.command(lambda proposer, now_ns: proposer.drain(name, "host goes down", now_ns))
        else:
            self.groups.runs[name].leave("preemption notice")

    def wait_for(self, is_true: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(3000):
            if is_true():
                return
            pause.wait(0.01)
        pytest.fail("nothing happened")


@pytest.mark.parametrize("way", ["drain", "notice"])
def test_a_member_that_heals_goes_when_it_is_told(way: str) -> None:
    case = Case(healing=EndlessHealing)
    for name in ("a-0", "b-0"):
        case.groups.start(name, case.work)
    case.wait_for(lambda: any(kind == "generation" for kind, _ in case.groups.hub.events))
    case.groups.start("c-0", case.work)
    case.wait_for(following.is_set)
    case.drain("c-0", way)
    case.end("c-0")
    steps = [fields for kind, fields in case.groups.hub.events if kind == "step_failed"]
    assert not steps, "the others did not notice"


@pytest.mark.parametrize("way", ["drain", "notice"])
def test_a_spare_goes_when_it_is_told(way: str) -> None:
    case = Case(healing=Healing)
    for name in ("a-0", "b-0"):
        case.groups.start(name, case.work)
    case.groups.start("s-0", case.work, wants="spare")

    def is_spare() -> bool:
        membership = case.groups.memberships.get("s-0")
        generation = membership.current() if membership is not None else None
        ids = {info.member_id for info in generation.spares} if generation is not None else set()
        return membership is not None and membership.member.member_id in ids

    case.wait_for(is_spare)
    case.drain("s-0", way)
    case.end("s-0")
    assert not [fields for kind, fields in case.groups.hub.events if kind == "step_failed"]


def test_the_last_member_that_is_told_to_go_saves_the_state_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when all get SIGTERM at once: nobody is there who could let the last one go."""
    monkeypatch.setattr("farstep.train.run.LEAVE_S", 1e9)  # no way out but the right one
    case = Case(healing=Healing)
    ends: dict[str, tuple[int, bool]] = {}

    def work(run: Run) -> None:
        model = small_model(1)
        with Checkpoint(tmp_path, every_steps=1_000_000) as checkpoint:
            trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint=checkpoint)
            for batch in run.shard(DATA, batch_size=12, epochs=1_000_000):
                trainer.step(lambda b=batch: nn.functional.cross_entropy(model(b[0]), b[1]))
            ends[run.name] = trainer.committed, run.is_complete
            run.close()

    for name in ("a-0", "b-0"):
        case.groups.start(name, work)
    case.wait_for(
        lambda: all(run.step > 3 for run in case.groups.runs.values()) and len(case.groups.runs) == 2
    )
    for name in ("a-0", "b-0"):
        case.drain(name, "notice")
    case.end("a-0")
    assert set(ends) == {"a-0", "b-0"}
    assert not any(is_complete for _, is_complete in ends.values())
    info, _ = CheckpointFolder(tmp_path).newest()
    assert info is not None
    assert info.step == max(step for step, _ in ends.values())


@pytest.mark.parametrize("way", ["drain", "notice"])
def test_a_member_that_waits_for_the_run_to_begin_goes_when_it_is_told(way: str) -> None:
    case = Case(healing=EndlessHealing, groups=3)
    case.groups.start("a-0", case.work)
    case.wait_for(lambda: any(kind == "member_joined" for kind, _ in case.groups.hub.events))
    case.drain("a-0", way)
    case.end("a-0")


def test_an_exception_between_two_steps_ends_the_run_of_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody catches it, and the interpreter closes the run: it is not finished."""
    case = Case(healing=None, groups=3)
    has_crashed = threading.Event()

    def work(run: Run) -> tuple[int, int]:
        model = small_model(1)
        trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1))
        end = 1_000_000
        for batch in run.shard(DATA, batch_size=12, epochs=1_000_000):
            trainer.step(lambda b=batch: nn.functional.cross_entropy(model(b[0]), b[1]))
            if run.name == "c-0" and trainer.committed == 3:
                # What the interpreter does at the end of a process.
                monkeypatch.setattr(sys, "last_value", ZeroDivisionError("in the evaluation"), raising=False)
                run._at_exit()
                monkeypatch.undo()
                has_crashed.set()
                break
            assert trainer.report is not None
            if has_crashed.wait(0.001) and trainer.report.num_groups == 2:
                end = min(end, trainer.committed + 5)
            if trainer.committed >= end:
                run.end()
        assert trainer.report is not None
        return trainer.committed, trainer.report.num_groups

    for name in ("a-0", "b-0", "c-0"):
        case.groups.start(name, work)
    case.end("c-0")
    assert case.groups.results["c-0"] == (3, 3)
    assert case.groups.results["a-0"] == case.groups.results["b-0"]
    assert case.groups.results["a-0"][0] > 3
    assert case.groups.results["a-0"][1] == 2


class _Bad(Dataset[Any]):
    """Numbers that one member cannot read from its third step on."""

    def __init__(self) -> None:
        self.is_bad: Callable[[], bool] = lambda: False

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> Any:
        if self.is_bad():
            raise ValueError("bad sample")
        return DATA[index]


WAYS = {
    "break": "its program left the loop before the end of the run",
    "end_of_program": "its program ended without run.close() before the end of the run",
    "sys.exit": "SystemExit: 1",
    "ctrl_c": "KeyboardInterrupt",
    "data": "ValueError: bad sample",
}


@pytest.mark.parametrize("way", WAYS)
def test_who_comes_out_of_the_loop_early_ends_the_run_of_nobody_else(way: str) -> None:
    case = Case(healing=None, groups=3)
    has_gone = threading.Event()

    def loop(run: Run) -> tuple[int, int]:
        model = small_model(1)
        data = _Bad()
        trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1))
        data.is_bad = lambda: way == "data" and run.name == "c-0" and trainer.committed == 3
        end = 1_000_000
        for batch in run.shard(data, batch_size=12, epochs=1_000_000):
            trainer.step(lambda b=batch: nn.functional.cross_entropy(model(b[0]), b[1]))
            assert trainer.report is not None
            if run.name == "c-0" and trainer.committed == 3:
                if way == "sys.exit":
                    sys.exit(1)
                if way == "ctrl_c":
                    raise KeyboardInterrupt
                if way != "data":
                    break
            elif has_gone.wait(0.001) and trainer.report.num_groups == 2:
                end = min(end, trainer.committed + 5)
            if trainer.committed >= end:
                run.end()
        assert trainer.report is not None
        return trainer.committed, trainer.report.num_groups

    def work(run: Run) -> tuple[int, int]:
        try:
            if way == "break" or run.name != "c-0":
                return loop(run)
            if way == "end_of_program":
                result = loop(run)
                run._at_exit()  # what the interpreter does at the end of a process
                return result
            with run:
                return loop(run)
        finally:
            if run.name == "c-0":
                run.close()
                has_gone.set()

    for name in ("a-0", "b-0", "c-0"):
        case.groups.start(name, work)
    case.groups.join("c-0")
    error = case.groups.errors.pop("c-0", None)
    assert (error is None) == (way in ("break", "end_of_program"))
    case.end("c-0")
    assert case.groups.results["a-0"] == case.groups.results["b-0"]
    assert case.groups.results["a-0"][0] > 3
    assert case.groups.results["a-0"][1] == 2
    told = [fields["reason"] for kind, fields in case.groups.hub.events if kind == "member_leaves"]
    assert told[0] == WAYS[way]


def test_to_end_the_run_and_leave_the_loop_is_the_end_for_all() -> None:
    groups = Groups(healing=None, groups=2, min_groups=1)

    def work(run: Run) -> tuple[int, bool]:
        model = small_model(1)
        trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.shard(DATA, batch_size=12, epochs=1_000_000):
            trainer.step(lambda b=batch: nn.functional.cross_entropy(model(b[0]), b[1]))
            if run.name == "a-0" and trainer.committed == 3:
                run.end()
                break
        run.close()
        return trainer.committed, run.is_finished

    for name in ("a-0", "b-0"):
        groups.start(name, work)
    groups.join()
    groups.close()
    assert not groups.errors
    assert groups.results["b-0"] == (3, True)


def test_a_member_that_comes_after_the_end_has_nothing_to_do() -> None:
    groups = Groups(healing=Healing, groups=2, min_groups=1)

    def work(run: Run) -> int:
        model = small_model(1)
        trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.shard(DATA, batch_size=12, steps=5):
            trainer.step(lambda b=batch: nn.functional.cross_entropy(model(b[0]), b[1]))
        return trainer.committed

    for name in ("a-0", "b-0"):
        groups.start(name, work)
    groups.join()
    groups.start("c-0", work)
    groups.start("a-0", work)
    groups.join()
    groups.close()
    assert not groups.errors
    assert groups.results == {"a-0": 0, "b-0": 5, "c-0": 0}
