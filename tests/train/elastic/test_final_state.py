"""At the end of a run a spare holds the final state, or says that it does not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from farstep.train.elastic import trainer as trainer_module
from farstep.train.elastic.trainer import Trainer
from farstep.train.healing import Healing
from farstep.train.run import Run
from tests.train.elastic.groups import Groups, digest_of, small_model
from tests.train.elastic.test_processes import Job

DATA = TensorDataset(
    torch.randn(64, 6, generator=torch.Generator().manual_seed(1)),
    torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(2)),
)
STEPS_MORE = 3


class LateHealing(Healing):
    """Follows the run until it has its state, and no further unless it is told that the end has come."""

    def follow(self, is_done: Callable[[], bool]) -> None:
        if self._is_awaited:
            super().follow(is_done)
            return
        super().follow(lambda: is_done() or self._is_ready)
        while not is_done():
            self._is_closed.wait(0.005)


def end_with_a_late_spare() -> tuple[Groups, dict[str, Any]]:
    groups = Groups(healing=LateHealing, groups=2, min_groups=2, spares=1)
    pause = threading.Event()

    def work(run: Run) -> tuple[int, bool, bool, str]:
        model = small_model(1)
        trainer = Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert not run.is_complete
        end = None
        for batch in run.shard(DATA, batch_size=12, epochs=1_000_000):
            trainer.step(lambda b=batch: nn.functional.cross_entropy(model(b[0]), b[1]))
            pause.wait(0.005)
            if end is None and any(kind == "heal_done" for kind, _ in list(groups.hub.events)):
                end = trainer.committed + STEPS_MORE
            if trainer.committed == end:
                run.end()
        was_complete = run.is_complete
        run.close()
        return trainer.committed, was_complete, run.is_complete, digest_of(model)

    for name in ("a", "b"):
        groups.start(name, work)
    groups.start("z", work, wants="spare")
    groups.join()
    groups.close()
    assert not groups.errors
    return groups, groups.results


def test_a_spare_gets_the_last_steps_when_the_run_ends() -> None:
    groups, results = end_with_a_late_spare()
    steps = results["a"][0]
    assert results["a"][:3] == (steps, True, True)
    assert results["z"] == results["b"] == results["a"]
    (event,) = [fields for kind, fields in groups.hub.events if kind == "end_followed"]
    assert event["step"] == event["final_step"] == steps


def test_a_spare_that_cannot_get_them_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trainer_module, "END_LINGER_S", 0.0)
    monkeypatch.setattr(LateHealing, "catch_up", lambda *args, **kwargs: False)
    with caplog.at_level(logging.WARNING, logger="farstep.train"):
        groups, results = end_with_a_late_spare()
    steps, held = results["a"][0], results["z"][0]
    assert results["a"][:3] == (steps, True, True)
    assert held < steps
    assert results["z"][:3] == (held, False, False)
    assert f"it holds the state after step {held}, and run.is_complete is False" in caplog.text
    (event,) = [fields for kind, fields in groups.hub.events if kind == "end_followed"]
    assert (event["step"], event["final_step"]) == (held, steps)


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        job.local.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("attempt", range(3))
def test_spares_in_processes_of_their_own_hold_the_final_state(
    jobs: list[Job], tmp_path: Path, attempt: int
) -> None:
    job = Job(tmp_path / "job", groups=2, spares=2, compute_s=0.005)
    jobs.append(job)
    job.local.start()
    job.wait_for(lambda: len(job.events("heal_done")) >= 2, "the spares being ready")
    assert set(job.end_after("group-0", 10 + attempt).values()) == {0}
    ends = [job.end(name) for name in ("group-0", "group-1", "spare-0", "spare-1")]
    assert [end["complete"] for end in ends] == [True] * 4
    assert len({(end["end"], end["digest"]) for end in ends}) == 1
