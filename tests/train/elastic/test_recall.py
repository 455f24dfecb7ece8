"""Checkpoints in the memory of the members: taken back when everybody who had a newer state is gone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from farstep.train.checkpoint import Checkpoint, PeerMemory
from farstep.train.elastic.trainer import Trainer
from farstep.train.errors import RunFailed
from farstep.train.healing import Healing, state_digest
from farstep.train.healing import source as healing_source
from farstep.train.run import Run
from tests.train.elastic.groups import Groups, small_model

EVERY_STEPS = 5
STEPS_AFTER = 12
DATA = TensorDataset(
    torch.randn(64, 6, generator=torch.Generator().manual_seed(1)),
    torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(2)),
)
SEATS = ("a-0", "b-0")
SPARES = ("s-0", "s-1", "s-2")


class Catastrophe:
    """Two seats, which both die in one step, and three spares that never got the state from them."""

    def __init__(self, *, num_stored: int = 1, folder: Path | None = None, spoils: int = 0) -> None:
        self.num_stored = num_stored
        self.folder = folder
        self.spoils = spoils
        self.memories: dict[str, PeerMemory] = {}
        self.ends: dict[str, tuple[int, str]] = {}
        self.starts: dict[str, int] = {}
        self.died_at: int | None = None
        self.groups = Groups(healing=Healing, groups=2, min_groups=2, max_groups=2, spares=3)

    def play(self) -> None:
        for name in SPARES:
            self.groups.start(name, self.work, wants="spare")
        while not all(name in self.groups.memberships for name in SPARES):
            time.sleep(
                0.005
            )  # who comes after the run has begun holds nothing until somebody has a seat for it
        for name in SEATS:
            self.groups.start(name, self.work)
        self.groups.join()
        self.groups.close()

    def stored(self) -> list[int]:
        """Steps that are in the members' memory, and survive that both seats are lost: all spares were there."""
        return [
            fields["step"]
            for kind, fields in self.groups.hub.events
            if kind == "memory_checkpoint" and fields["members_lost_max"] >= len(SEATS)
        ]

    def is_time(self) -> bool:
        everybody = all(f"{name}" in self.groups.memberships for name in SPARES)
        return everybody and len(self.stored()) >= self.num_stored

    def work(self, run: Run) -> None:
        model = small_model(1)
        memory = self.memories[run.name] = PeerMemory(every_steps=EVERY_STEPS)
        checkpoint = Checkpoint(self.folder, every_steps=2) if self.folder is not None else None
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        trainer = Trainer(run, model, optimizer, memory=memory, checkpoint=checkpoint)

        def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
            if run.name in SEATS:
                time.sleep(0.005)
                if self.died_at is None and self.is_time():
                    self.died_at = trainer.committed + 2
                if trainer.committed == self.died_at:
                    for name in SPARES[: self.spoils]:
                        for held in self.memories[name].held:
                            held.shards.clear()
                    self.groups.kill(run.name)
            else:
                self.starts.setdefault(run.name, trainer.committed)
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        for batch in run.shard(DATA, batch_size=12, seed=3, steps=10**9):
            trainer.step(loss_of, batch)
            if run.name in SPARES and trainer.committed >= self.starts[run.name] + STEPS_AFTER:
                trainer.end()
        if run.name in self.starts:  # rather than a spare to the end
            self.ends[run.name] = trainer.committed, state_digest(trainer.state.capture())


def undisturbed(steps: int) -> str:
    groups = Groups(groups=2, min_groups=2)

    def work(run: Run) -> str:
        model = small_model(1)
        trainer = Trainer(run, model, torch.optim.AdamW(model.parameters(), lr=1e-2))
        for batch in run.shard(DATA, batch_size=12, seed=3, steps=steps):
            trainer.step(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), batch)
        return state_digest(trainer.state.capture())

    for name in SEATS:
        groups.start(name, work)
    groups.join()
    groups.close()
    assert not groups.errors
    return str(groups.results["a-0"])


@pytest.fixture(autouse=True)
def spares_never_get_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing_source._Session, "_try_chunk", lambda self, line, request: False)


def test_the_newest_state_in_memory_is_taken_back_when_all_seats_are_lost() -> None:
    catastrophe = Catastrophe(num_stored=2)
    catastrophe.play()
    assert not catastrophe.groups.errors
    assert len(catastrophe.ends) >= 2
    ((step, digest),) = set(catastrophe.ends.values())
    assert (
        set(catastrophe.starts.values()) == {max(catastrophe.stored()[:2])}
        or min(catastrophe.starts.values()) in catastrophe.stored()
    ), "training goes on from a step that was stored"
    assert min(catastrophe.starts.values()) >= 2 * EVERY_STEPS
    assert digest == undisturbed(step)
    kinds = [kind for kind, _ in catastrophe.groups.hub.events]
    assert "memory_recalled" in kinds


def test_with_too_few_shards_left_the_disk_is_next(tmp_path: Path) -> None:
    catastrophe = Catastrophe(folder=tmp_path, spoils=1)
    catastrophe.play()
    assert not catastrophe.groups.errors
    ((step, digest),) = set(catastrophe.ends.values())
    assert digest == undisturbed(step)
    kinds = [kind for kind, _ in catastrophe.groups.hub.events]
    loaded = {f["step"] for kind, f in catastrophe.groups.hub.events if kind == "checkpoint_loaded"}
    assert set(catastrophe.starts.values()) == loaded, "training goes on from what was on the disk"
    assert "memory_recalled" not in kinds


def test_with_nothing_left_anywhere_nobody_begins_anew_in_silence() -> None:
    catastrophe = Catastrophe(spoils=1)
    catastrophe.play()
    seated: list[Any] = [error for error in catastrophe.groups.errors.values() if error is not None]
    assert seated
    assert all(isinstance(error, RunFailed) for error in seated)
    assert "every copy of the state is lost" in str(seated[0])
