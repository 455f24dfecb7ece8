"""What is given to `farstep.join` arrives where it is used."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import farstep
from farstep.train.healing import Healing

SETTINGS = farstep.HealingSettings(rate_mbps=7.0, log_bytes_max=1 << 20, follow_slowdown=None)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FARSTEP_COORDINATOR", "FARSTEP_GROUP", "FARSTEP_SPARE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def healing_of(run: farstep.Run) -> Healing:
    model = nn.Linear(2, 1)
    trainer = farstep.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1))
    healing = trainer._formation.healing
    assert isinstance(healing, Healing)
    return healing


def test_settings_of_healing_reach_what_heals() -> None:
    with farstep.join(name="a-0", healing=SETTINGS) as run:
        healing = healing_of(run)
        assert healing.settings is SETTINGS
        assert healing.rate_mbps == pytest.approx(7.0)


def test_without_settings_those_of_the_product_hold() -> None:
    with farstep.join(name="a-0") as run:
        assert healing_of(run).settings == farstep.HealingSettings()


@pytest.mark.parametrize(
    ("field", "value"), [("follow_slowdown", 0.0), ("takeover_s", 0.0), ("doze_s", -1.0), ("slowdown", 0.0)]
)
def test_settings_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} = {value}"):
        farstep.HealingSettings(**{field: value})
