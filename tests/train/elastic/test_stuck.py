"""Members whose training thread is stuck while their process lives and answers."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from farstep.train.elastic.options import Synchronous
from farstep.train.elastic.trainer import Trainer
from farstep.train.run import Run
from tests.train.elastic.groups import Groups, small_model

STEPS = 12
STUCK_AT = 6
DATA = TensorDataset(
    torch.randn(64, 6, generator=torch.Generator().manual_seed(1)),
    torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(2)),
)


@pytest.mark.parametrize(
    ("where", "names", "stuck"),
    [
        ("in the step", ["a-0", "b-0", "c-0"], {"b-0"}),
        ("between steps", ["a-0", "b-0", "c-0"], {"b-0"}),
        ("in the step", ["a-0", "b-0", "c-0", "d-0"], {"b-0", "d-0"}),
    ],
)
def test_stuck_threads_cost_one_deadline(where: str, names: list[str], stuck: set[str]) -> None:
    groups = Groups(groups=len(names), min_groups=1)
    lets_go = threading.Event()

    def work(run: Run) -> tuple[int, int]:
        model = small_model(1)
        policy = Synchronous(step_deadline_s=1.0, stall_s=0.3)
        trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy)

        def maybe_stick(is_here: bool) -> None:
            if is_here and run.name in stuck and trainer.committed == STUCK_AT and not lets_go.is_set():
                lets_go.wait(60)
                groups.kill(run.name)  # it never comes to itself again

        for batch in run.shard(DATA, batch_size=12, steps=STEPS):

            def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
                maybe_stick(where == "in the step")
                return nn.functional.cross_entropy(model(batch[0]), batch[1])

            maybe_stick(where == "between steps")
            trainer.step(loss_of, batch)
        lets_go.set()
        assert trainer.report is not None
        return trainer.committed, trainer.report.num_groups

    for name in names:
        groups.start(name, work)
    groups.join(timeout_s=60)
    groups.close()
    assert not groups.errors
    left = [name for name in names if name not in stuck]
    assert groups.results["a-0"] == groups.results["c-0"] == (STEPS, len(left))
    generations = [fields for kind, fields in groups.hub.events if kind == "generation"]
    assert [fields["members"] for fields in generations[:2]] == [names, left], (
        "nobody tried again with those that are stuck"
    )
    assert "its training thread is stuck" in generations[1]["reason"]


def test_one_that_takes_its_time_in_the_first_steps_is_waited_for() -> None:
    groups = Groups(groups=3, min_groups=1)
    has_compiled = threading.Event()

    def work(run: Run) -> int:
        model = small_model(1)
        policy = Synchronous(step_deadline_s=0.5, stall_s=0.01)
        trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy)
        pause = threading.Event()

        def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
            if run.name == "b-0" and not has_compiled.is_set():
                has_compiled.set()
                pause.wait(0.8)
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        for batch in run.shard(DATA, batch_size=12, steps=3):
            trainer.step(loss_of, batch)
        assert trainer.report is not None
        return trainer.report.num_groups

    for name in ("a-0", "b-0", "c-0"):
        groups.start(name, work)
    groups.join(timeout_s=60)
    groups.close()
    assert not groups.errors
    assert set(groups.results.values()) == {3}
    assert not [fields for kind, fields in groups.hub.events if kind == "evict"]
