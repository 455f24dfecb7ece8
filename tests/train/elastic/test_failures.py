"""What becomes of a step when a member dies at any point of it; replica groups are threads here."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from farstep.train.elastic.options import Synchronous
from farstep.train.elastic.trainer import Trainer
from farstep.train.errors import RunFailed
from farstep.train.healing import Healing, state_digest
from farstep.train.run import Run
from tests.train.elastic.groups import Groups, small_model

STEPS = 12
KILL_AT = 5
OPEN_END = 10**9
STEPS_AFTER = 20
"""Steps of a scenario with a spare after the member has died; how many come before depends on the machine."""
DATA = TensorDataset(
    torch.randn(64, 6, generator=torch.Generator().manual_seed(1)),
    torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(2)),
)
POINTS = ("compute", "first bucket", "before the vote", "after the vote", "between steps")


class Scenario:
    """Three replica groups, one of which dies at a point of a step."""

    make_model = staticmethod(small_model)

    def __init__(
        self,
        point: str | None,
        form: str,
        *,
        with_spare: bool = False,
        heals: bool = True,
        steps: int = STEPS,
    ) -> None:
        self.steps = steps
        self.committed = 0
        self.point = point
        self.form = form
        self.groups = Groups(healing=Healing if heals else None, groups=3, min_groups=1)
        self.digests: dict[str, str] = {}
        self.reports: dict[str, list[Any]] = {}
        self.used: dict[str, list[int]] = {}
        self.has_spare = with_spare
        self.died_at: int | None = None

    def play(self) -> Scenario:
        names = ["a-0", "b-0", "c-0"]
        if self.has_spare:
            self.groups.start("s-0", self.work, wants="spare")
        for name in names:
            self.groups.start(name, self.work)
        self.groups.join()
        self.groups.close()
        for error in self.groups.errors.values():
            raise error
        return self

    def work(self, run: Run) -> None:
        model = self.make_model(1)
        trainer = Trainer(
            run,
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-2),
            policy=Synchronous(bucket_bytes=4096),
            clip_norm=1.0,
        )
        if run.name == "b-0" and self.point is not None:
            self.plant(trainer)
        if self.has_spare and run.name == "a-0":
            self.wait_for_spare()
        reports = self.reports[run.name] = []

        def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
            if self.has_spare and not self.spare_is_ready():
                time.sleep(0.01)
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        for batch in run.shard(DATA, batch_size=12, seed=3, steps=self.steps):
            if self.form == "batch":
                trainer.step(loss_of, batch)
            elif self.form == "parts":
                trainer.step([loss_of, loss_of], batch)
            else:
                trainer.step(lambda batch=batch: loss_of(batch))
            reports.append(trainer.report)
            if self.has_spare and self.died_at is not None and trainer.committed > self.died_at + STEPS_AFTER:
                trainer.end()
        self.committed = trainer.committed
        self.digests[run.name] = state_digest(trainer.state.capture())

    def wait_for_spare(self) -> None:
        while "s-0" not in self.groups.memberships:
            time.sleep(0.005)

    def plant(self, trainer: Trainer) -> None:
        """Makes the trainer's member die at the point."""
        runner: Any = trainer._runner

        def kill(name: str) -> None:
            self.died_at = trainer.committed
            self.groups.kill(name)

        def dying(original: Any, *, after: bool) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                is_time = trainer.committed >= KILL_AT and self.spare_is_ready()
                if is_time and not after:
                    kill("b-0")
                result = original(*arguments, **options)
                if is_time:
                    kill("b-0")
                return result

            return call

        if self.point == "compute":
            runner._backward = dying(runner._backward, after=False)
        elif self.point == "first bucket":
            arm = trainer.state.gradients.arm
            trainer.state.gradients.arm = lambda send: arm(dying(send, after=True))  # type: ignore[method-assign]
        elif self.point == "before the vote":
            runner.vote = dying(runner.vote, after=False)
        elif self.point == "after the vote":
            runner.vote = dying(runner.vote, after=True)
        else:
            runner.commit = dying(runner.commit, after=True)

    def spare_is_ready(self) -> bool:
        if not self.has_spare:
            return True
        return any(kind == "heal_done" for kind, _ in self.groups.hub.events)


@pytest.mark.parametrize("form", ["batch", "closure"])
@pytest.mark.parametrize("point", POINTS)
def test_survivors_agree_and_use_every_sample_once(point: str, form: str) -> None:
    scenario = Scenario(point, form, heals=False).play()
    assert set(scenario.digests) == {"a-0", "c-0"}
    assert scenario.digests["a-0"] == scenario.digests["c-0"]
    for name in ("a-0", "c-0"):
        reports = scenario.reports[name]
        assert [report.step for report in reports] == list(range(STEPS))
        assert sum(report.attempts - 1 for report in reports) <= 1
        assert reports[-1].num_groups == 2
    samples = [report.samples for report in scenario.reports["a-0"]]
    epochs = _epochs(samples)
    assert all(sum(epoch) == 64 for epoch in epochs[:-1]), samples


def _epochs(samples: list[int]) -> list[list[int]]:
    """Splits the sizes of steps into epochs of 64 samples."""
    epochs: list[list[int]] = [[]]
    for count in samples:
        if sum(epochs[-1]) >= 64:
            epochs.append([])
        epochs[-1].append(count)
    return epochs


@pytest.mark.parametrize("point", ["before the vote", "after the vote"])
def test_a_step_that_everybody_holds_is_not_lost(point: str, caplog: pytest.LogCaptureFixture) -> None:
    scenario = Scenario(point, "batch", heals=False).play()
    told = [message for message in caplog.messages if message.startswith("generation 2: a-0, c-0, as b-0")]
    assert len(told) == 2, "each survivor says on its console what has happened"
    report = scenario.reports["a-0"][KILL_AT]
    assert report.samples == 4 or report.samples == 12
    used = [report.samples for report in scenario.reports["a-0"]]
    undisturbed = Scenario(None, "batch", heals=False).play()
    assert used[: KILL_AT + 1] == [r.samples for r in undisturbed.reports["a-0"]][: KILL_AT + 1]
    assert report.loss == undisturbed.reports["a-0"][KILL_AT].loss


@pytest.mark.parametrize("form", ["batch", "closure"])
@pytest.mark.parametrize("point", POINTS)
def test_a_spare_takes_over_bit_for_bit(point: str, form: str) -> None:
    scenario = Scenario(point, form, with_spare=True, steps=OPEN_END).play()
    undisturbed = Scenario(None, form, heals=False, steps=scenario.committed).play()
    assert set(scenario.digests) == {"a-0", "c-0", "s-0"}
    assert set(scenario.digests.values()) == {undisturbed.digests["a-0"]}
    assert scenario.reports["s-0"], "the spare has trained"
    assert {report.num_groups for report in scenario.reports["a-0"]} == {3}


def test_a_member_that_hangs_is_given_up_by_the_others() -> None:
    groups = Groups(groups=3, min_groups=1)
    lets_go = threading.Event()

    def work(run: Run) -> tuple[int, int]:
        model = small_model(1)
        policy = Synchronous(step_deadline_s=0.4)
        trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy)

        def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
            if run.name == "b-0" and trainer.committed == KILL_AT and not lets_go.is_set():
                lets_go.wait(20)
                groups.kill("b-0")  # it never comes to itself again
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        for batch in run.shard(DATA, batch_size=12, steps=STEPS):
            trainer.step(loss_of, batch)
            if run.name == "a-0" and trainer.committed == STEPS:
                lets_go.set()
        assert trainer.report is not None
        return trainer.committed, trainer.report.num_groups

    for name in ("a-0", "b-0", "c-0"):
        groups.start(name, work)
    groups.join()
    groups.close()
    assert not groups.errors
    assert groups.results["a-0"] == groups.results["c-0"] == (STEPS, 2)
    assert any(kind == "evict" or "lost" in kind for kind, _ in groups.hub.events)


def test_members_that_start_differently_train_the_model_of_the_first() -> None:
    groups = Groups(groups=2, min_groups=2)

    def work(run: Run) -> str:
        model = small_model(1 if run.name == "a-0" else 2)
        trainer = Trainer(run, model, torch.optim.AdamW(model.parameters(), lr=0.1))
        trainer.ready()
        return state_digest(dict(model.state_dict()))

    for name in ("a-0", "b-0"):
        groups.start(name, work)
    groups.join()
    groups.close()
    assert groups.results["a-0"] == groups.results["b-0"] == state_digest(dict(small_model(1).state_dict()))


def test_a_step_without_finite_gradient_is_left_out_by_all() -> None:
    groups = Groups(groups=2, min_groups=2)

    def work(run: Run) -> tuple[list[bool], str, float]:
        model = small_model(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        trainer = Trainer(run, model, optimizer, scheduler=scheduler)
        applied = []
        for batch in run.shard(DATA, batch_size=12, steps=4):
            spoils = run.name == "b-0" and trainer.committed == 2
            factor = float("nan") if spoils else 1.0
            trainer.step(lambda b=batch, f=factor: f * nn.functional.cross_entropy(model(b[0]), b[1]))
            assert trainer.report is not None
            applied.append(trainer.report.is_applied)
        return applied, state_digest(trainer.state.capture()), optimizer.param_groups[0]["lr"]

    for name in ("a-0", "b-0"):
        groups.start(name, work)
    groups.join()
    groups.close()
    assert not groups.errors
    assert groups.results["a-0"] == groups.results["b-0"]
    assert groups.results["a-0"][0] == [True, True, False, True]
    assert groups.results["a-0"][2] == pytest.approx(0.1 * 0.5**3), (
        "the scheduler counts steps that were applied"
    )


def test_training_that_has_diverged_ends_with_a_word() -> None:
    groups = Groups(groups=2, min_groups=1)

    def work(run: Run) -> None:
        model = small_model(1)
        policy = Synchronous(refused_steps_max=3)
        trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy)
        for batch in run.shard(DATA, batch_size=12, steps=20):
            trainer.step(lambda b=batch: model(b[0]).sum() * float("inf"))

    for name in ("a-0", "b-0"):
        groups.start(name, work)
    groups.join()
    groups.close()
    assert {type(error) for error in groups.errors.values()} == {RunFailed}
    assert "3 steps in a row" in str(groups.errors["a-0"])


def test_a_loss_that_is_none_is_named() -> None:
    groups = Groups(groups=1, min_groups=1)

    def work(run: Run) -> None:
        model = small_model(1)
        trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.shard(DATA, batch_size=12):
            trainer.step(lambda b=batch: model(b[0]))

    groups.start("a-0", work)
    groups.join()
    groups.close()
    assert "one number" in str(groups.errors["a-0"])
