"""Wrong arguments of the training interface are named in one line, before any work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import farstep
from farstep.train.errors import ConfigError

DATA = TensorDataset(torch.arange(10.0))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[farstep.Run]:
    monkeypatch.delenv("FARSTEP_COORDINATOR", raising=False)
    with farstep.join() as joined:
        yield joined


def model_of() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def one_line(caught: pytest.ExceptionInfo[ConfigError], *words: str) -> None:
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_bytes": "4096"},
        {"bucket_bytes": math.nan},
        {"bucket_bytes": 4096.5},
        {"bucket_bytes": 10**30},
        {"refused_steps_max": 1.5},
        {"step_deadline_s": "1"},
        {"step_deadline_s": None},
        {"step_deadline_s": math.nan},
        {"step_deadline_s": math.inf},
        {"stall_s": None},
        {"skip_not_finite": "no"},
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        farstep.Synchronous(**options)
    one_line(caught, next(iter(options)))


@pytest.mark.parametrize(
    "options",
    [
        {"coordinator": 5},
        {"coordinator": []},
        {"name": ""},
        {"name": "a b"},
        {"name": "a\n"},
        {"site": 5},
        {"site": "x\ny"},
        {"site": "x" * 5000},
        {"run": "a b"},
        {"run": 5},
        {"tls": 5},
        {"tls": __file__},
        {"ports": "127.0.0.1:0"},
        {"ports": [5]},
        {"ports": []},
        {"profile": 5},
        {"healing": 5},
        {"spare": "yes"},
    ],
)
def test_a_wrong_argument_of_join_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        farstep.join(**options)
    one_line(caught, next(iter(options)))


def test_a_folder_of_certificates_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        farstep.join(tls=str(tmp_path / "nowhere"))
    one_line(caught, "tls", "no such folder")


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "global"},
        {"policy": farstep.Synchronous},
        {"scheduler": 5},
        {"state": [1]},
        {"state": {"x": 5}},
        {"clip_norm": "1"},
        {"clip_norm": math.inf},
        {"clip_norm": True},
        {"seed": 1.5},
        {"seed": None},
        {"checkpoint": "folder"},
        {"checkpoint": farstep.Checkpoint},
        {"memory": "3-of-5"},
    ],
)
def test_a_wrong_argument_of_the_trainer_is_named(run: farstep.Run, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        farstep.Trainer(run, *model_of(), **options)
    one_line(caught, next(iter(options)))


def test_what_cannot_be_trained_is_named(run: farstep.Run) -> None:
    model, optimizer = model_of()
    _, foreign = model_of()
    wider = nn.Sequential(model, nn.Linear(2, 2))
    no_run: Any = None
    swapped: Any = optimizer
    lbfgs = torch.optim.LBFGS(model.parameters())
    for arguments, word in [
        ((no_run, model, optimizer), "farstep.join()"),
        ((run, swapped, optimizer), "model"),
        ((run, model, model), "optimizer"),
        ((run, model, foreign), "not the model's"),
        ((run, wider, optimizer), "1.weight"),
        ((run, model, lbfgs), "LBFGS"),
    ]:
        with pytest.raises(ConfigError) as caught:
            farstep.Trainer(*arguments)  # type: ignore[arg-type]
        one_line(caught, word)


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": "1"},
        {"epochs": 1.5},
        {"steps": math.nan},
        {"seed": "a"},
        {"seed": 1.5},
        {"shuffle": "x"},
        {"drop_last": 1},
        {"collate_fn": 5},
        {"num_workers": -1},
        {"num_workers": "x"},
        {"batch_size": 10**30},
        {"bogus": 1},
        {"place": 3},
    ],
)
def test_a_wrong_argument_of_the_shard_is_named(run: farstep.Run, options: dict[str, Any]) -> None:
    farstep.Trainer(run, *model_of())
    with pytest.raises(ConfigError) as caught:
        run.shard(DATA, **{"batch_size": 2, **options})
    one_line(caught, next(iter(options)))


def test_a_loss_that_trains_nothing_is_refused_before_the_step(run: farstep.Run) -> None:
    model, _ = model_of()
    inputs = torch.ones(3, 4)
    for wrong, word in [
        (lambda: model(inputs).sum().detach(), "without gradient"),
        (lambda: torch.tensor(3), "int64"),
        (lambda: model(inputs), "(3, 2)"),
        (lambda: 1.0, "float"),
        ([], "at least one"),
        (None, "must be a function"),
    ]:
        function: Any = wrong
        with farstep.join() as other:
            trainer = farstep.Trainer(other, model, torch.optim.SGD(model.parameters(), lr=0.1))
            before = [parameter.clone() for parameter in model.parameters()]
            with pytest.raises(ConfigError) as caught:
                trainer.step(function)
            one_line(caught, word)
            assert trainer.committed == 0
            assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
