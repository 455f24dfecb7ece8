"""Members that die at random points and come back, from a seed; replica groups are threads here."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from farstep.train.elastic.options import Synchronous
from farstep.train.elastic.trainer import Trainer
from farstep.train.healing import Healing, state_digest
from farstep.train.run import Run
from tests.train.elastic.groups import Groups, small_model

NUM_SAMPLES = 60
OPEN_END = 10**9
KILLS = 3
CALM_STEPS = 20
"""Made by all three before the run ends, and between one member's return and the next one's death."""
DATA = TensorDataset(
    torch.randn(NUM_SAMPLES, 6, generator=torch.Generator().manual_seed(1)),
    torch.randint(0, 3, (NUM_SAMPLES,), generator=torch.Generator().manual_seed(2)),
)
METHODS = ("_backward", "_finish_reduction", "vote", "commit")


class Chaos:
    """Three replica groups that are never left in peace."""

    def __init__(self, seed: int, form: str) -> None:
        self.draw = random.Random(seed)
        self.form = form
        self.groups = Groups(healing=Healing, groups=3, min_groups=1)
        self.lock = threading.Lock()
        self.kills = 0
        self.next_kill_step = CALM_STEPS
        self.whole_since: int | None = 0
        self.ends: dict[str, tuple[int, str]] = {}
        self.dealt: dict[int, tuple[Any, ...]] = {}
        self.living = {"a-0", "b-0", "c-0"}
        self.revived: list[threading.Timer] = []

    def play(self) -> None:
        for name in sorted(self.living):
            self.groups.start(name, self.work)
        while any(thread.is_alive() for thread in list(self.groups.threads.values())):
            time.sleep(0.02)
        for timer in self.revived:
            timer.join()
        self.groups.join()
        self.groups.close()
        for error in self.groups.errors.values():
            raise error

    def may_die(self, name: str, trainer: Trainer) -> bool:
        """At most one member is away at a time, and nobody once enough have died."""
        with self.lock:
            is_time = trainer.committed >= self.next_kill_step and self.draw.random() < 0.3
            if not is_time or self.kills == KILLS or not self.is_whole(trainer):
                return False
            self.living.discard(name)
            self.kills += 1
            self.whole_since, self.next_kill_step = None, OPEN_END
            timer = threading.Timer(self.draw.uniform(0.0, 0.3), self.revive, args=(name,))
            self.revived.append(timer)
            timer.start()
            return True

    def is_whole(self, trainer: Trainer) -> bool:
        place = trainer.place
        return place is not None and place.num_seats == 3 and len(self.living) == 3

    def revive(self, name: str) -> None:
        self.groups.threads[name].join()
        with self.lock:
            self.living.add(name)
        self.groups.start(name, self.work)

    def look(self, trainer: Trainer) -> None:
        """After a step: sets the next death, or the end, once all three are back."""
        with self.lock:
            if not self.is_whole(trainer):
                self.whole_since = None
            elif self.whole_since is None:
                self.whole_since = trainer.committed
                self.next_kill_step = trainer.committed + self.draw.randint(CALM_STEPS, 2 * CALM_STEPS)
            elif self.kills == KILLS and trainer.committed >= self.whole_since + CALM_STEPS:
                trainer.end()

    def work(self, run: Run) -> None:
        model = small_model(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        trainer = Trainer(run, model, optimizer, policy=Synchronous(bucket_bytes=4096))
        runner: Any = trainer._runner
        for method in METHODS:
            setattr(runner, method, self.mined(run.name, trainer, getattr(runner, method)))

        def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
            time.sleep(0.01)
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        for batch in run.shard(DATA, batch_size=12, seed=3, steps=OPEN_END):
            if self.form == "batch":
                trainer.step(loss_of, batch)
            else:
                trainer.step(lambda batch=batch: loss_of(batch))
            report = trainer.report
            assert report is not None
            if report.is_own:
                figures = (report.loss, report.samples, report.num_groups)
                assert self.dealt.setdefault(report.step, figures) == figures
            self.look(trainer)
        self.ends[run.name] = trainer.committed, state_digest(trainer.state.capture())

    def mined(self, name: str, trainer: Trainer, original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.may_die(name, trainer):
                self.groups.kill(name)
            return original(*arguments, **options)

        return call


@pytest.mark.parametrize("form", ["batch", "closure"])
@pytest.mark.parametrize("seed", [1, 2])
def test_members_may_die_and_come_back_at_any_time(seed: int, form: str) -> None:
    chaos = Chaos(seed, form)
    chaos.play()
    assert chaos.kills == KILLS
    assert set(chaos.ends) == {"a-0", "b-0", "c-0"}
    assert len(set(chaos.ends.values())) == 1
    kinds = [kind for kind, _ in chaos.groups.hub.events]
    assert "state_differs" not in kinds, "whoever was healed had the state of the others"
    assert set(chaos.dealt) == set(range(chaos.ends["a-0"][0])), "every step was made once"
    assert {report[1] for report in chaos.dealt.values()} <= set(range(1, 13))
