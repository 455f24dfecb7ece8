"""What could part replicas for good: statistics of a model, layers without a gradient, members that train otherwise."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from farstep.train.elastic.trainer import Trainer
from farstep.train.errors import ConfigError
from farstep.train.healing import Healing, HealingError, state_digest
from farstep.train.run import Run
from tests.train.elastic.groups import Groups, small_model
from tests.train.elastic.test_failures import DATA, OPEN_END, STEPS, Scenario


class Norm(nn.BatchNorm1d):
    """Takes batches of one sample too, which have no variance of their own."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if len(values) > 1:
            return super().forward(values)
        return nn.functional.batch_norm(
            values, self.running_mean, self.running_var, self.weight, self.bias, training=False
        )


def normed_model(seed: int = 0) -> nn.Module:
    model = small_model(seed)
    assert isinstance(model, nn.Sequential)
    return nn.Sequential(model[0], Norm(8), *model[1:])


class NormedScenario(Scenario):
    make_model = staticmethod(normed_model)

    def told(self) -> set[str]:
        return {kind for kind, _ in self.groups.hub.events}


@pytest.mark.parametrize(
    ("point", "form"),
    [("compute", "batch"), ("compute", "closure"), ("first bucket", "parts"), ("after the vote", "batch")],
)
def test_statistics_survive_that_a_spare_takes_over(point: str, form: str) -> None:
    scenario = NormedScenario(point, form, with_spare=True, steps=OPEN_END).play()
    undisturbed = NormedScenario(None, form, heals=False, steps=scenario.committed).play()
    assert set(scenario.digests) == {"a-0", "c-0", "s-0"}
    assert set(scenario.digests.values()) == {undisturbed.digests["a-0"]}
    assert "state_differs" not in scenario.told()


@pytest.mark.parametrize("form", ["closure", "parts"])
def test_statistics_survive_a_member_that_is_not_replaced(form: str) -> None:
    scenario = NormedScenario("compute", form, heals=False).play()
    assert set(scenario.digests) == {"a-0", "c-0"}
    assert len(set(scenario.digests.values())) == 1


def test_a_step_whose_samples_went_with_a_member_is_dealt_anew() -> None:
    groups = Groups(groups=3, min_groups=1)
    data = TensorDataset(*(tensor[:13] for tensor in DATA.tensors))

    def work(run: Run) -> tuple[list[tuple[int, float]], str]:
        model = small_model(1)
        trainer = Trainer(run, model, torch.optim.AdamW(model.parameters(), lr=1e-2))

        def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
            if run.name == "a-0" and trainer.committed == 1:  # the one sample of the step is here
                groups.kill("a-0")
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        steps: dict[int, tuple[int, float]] = {}
        for batch in run.shard(data, batch_size=12, steps=4):
            trainer.step(lambda batch=batch: loss_of(batch))
            assert trainer.report is not None
            steps[trainer.report.step] = trainer.report.samples, trainer.report.loss
        return list(steps.values()), state_digest(trainer.state.capture())

    for name in ("a-0", "b-0", "c-0"):
        groups.start(name, work)
    groups.join()
    groups.close()
    assert not groups.errors
    assert groups.results["b-0"] == groups.results["c-0"]
    assert [samples for samples, _ in groups.results["b-0"][0]] == [12, 1, 12, 1]
    assert all(loss > 0 for _, loss in groups.results["b-0"][0])


class Branches(nn.Module):
    """A layer for all, one that only some samples need, and one that nobody does."""

    def __init__(self) -> None:
        super().__init__()
        self.common, self.rare, self.unused = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, values: torch.Tensor, is_rare: bool) -> torch.Tensor:
        hidden: torch.Tensor = self.common(values)
        return hidden + self.rare(values) if is_rare else hidden


@pytest.mark.parametrize("names", [("a-0",), ("a-0", "b-0")])
def test_layers_that_no_member_needs_are_left_alone_as_in_plain_torch(names: tuple[str, ...]) -> None:
    groups = Groups(groups=len(names), min_groups=1)

    def make() -> tuple[Branches, torch.optim.Optimizer]:
        model = Branches()
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter) * (1 + number))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)

    def work(run: Run) -> dict[str, Any]:
        model, optimizer = make()
        trainer = Trainer(run, model, optimizer)
        for values, kinds in run.shard(DATA, batch_size=16, shuffle=False, steps=4):
            # The last group meets a rare sample in every other step.
            is_rare = run.name == names[-1] and trainer.committed % 2 == 1

            def loss(values: Any = values, kinds: Any = kinds, is_rare: bool = is_rare) -> torch.Tensor:
                return nn.functional.cross_entropy(model(values, is_rare), kinds)

            trainer.step(loss)
        return {"model": model.state_dict(), "held": set(optimizer.state_dict()["state"])}

    for name in names:
        groups.start(name, work)
    groups.join()
    groups.close()
    assert not groups.errors
    model, optimizer = make()
    values, kinds = DATA.tensors
    for step in range(4):
        optimizer.zero_grad()
        size = 16 // len(names)
        for group in range(len(names)):
            part = slice(16 * step + size * group, 16 * step + size * (group + 1))
            is_rare = group == len(names) - 1 and step % 2 == 1
            loss = nn.functional.cross_entropy(model(values[part], is_rare), kinds[part])
            (loss / len(names)).backward()
        optimizer.step()
    for result in groups.results.values():
        assert result["held"] == set(optimizer.state_dict()["state"]), "the unused layer has no state"
        for key, value in model.state_dict().items():
            assert torch.allclose(result["model"][key], value, atol=1e-6), key
    assert torch.equal(groups.results["a-0"]["model"]["unused.weight"], make()[0].unused.weight)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"clip_norm": 0.5}, "clip_norm is None in the run and 0.5 here"),
        ({}, "batch_size is 12 in the run and 6"),
    ],
)
def test_a_member_by_other_rules_fails_alone(options: dict[str, Any], word: str) -> None:
    groups = Groups(groups=2, min_groups=1)

    def work(run: Run) -> int:
        model = small_model(1)
        is_odd = run.name == "b-0"
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        trainer = Trainer(run, model, optimizer, **(options if is_odd else {}))
        for batch in run.shard(DATA, batch_size=6 if is_odd and not options else 12, steps=STEPS):
            trainer.step(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), batch)
        return trainer.committed

    for name in ("a-0", "b-0"):
        groups.start(name, work)
    groups.join()
    groups.close()
    assert set(groups.errors) == {"b-0"}
    assert isinstance(groups.errors["b-0"], ConfigError)
    assert word in str(groups.errors["b-0"])
    assert groups.results["a-0"] == STEPS


def test_a_late_member_with_another_optimizer_gets_no_seat() -> None:
    groups = Groups(healing=Healing, groups=2, min_groups=1)
    is_over = threading.Event()

    def work(run: Run) -> set[int]:
        model = small_model(1)
        maker = torch.optim.SGD if run.name == "late" else torch.optim.AdamW
        trainer = Trainer(run, model, maker(model.parameters(), lr=0.1))
        seen = set()
        for batch in run.shard(DATA, batch_size=12, steps=OPEN_END):
            trainer.step(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), batch)
            assert trainer.report is not None
            seen.add(trainer.report.num_groups)
            if is_over.wait(0.01):
                trainer.end()
        return seen

    for name in ("a-0", "b-0"):
        groups.start(name, work)
    while not any(kind == "regroup" for kind, _ in groups.hub.events):
        is_over.wait(0.01)
    groups.start("late", work)
    groups.join("late")
    is_over.set()
    groups.join()
    groups.close()
    assert set(groups.errors) == {"late"}
    assert isinstance(groups.errors["late"], HealingError)
    assert "has AdamW, this member SGD" in str(groups.errors["late"])
    assert groups.results["a-0"] == groups.results["b-0"] == {2}
