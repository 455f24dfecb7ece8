"""What the chaos runs have found, each as small as it can be made."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from farstep.membership import Generation, MemberInfo
from farstep.membership.records import Ballot
from farstep.train.elastic.blame import suspects_of
from farstep.train.elastic.trainer import Trainer
from farstep.train.healing import Healing, state_digest
from farstep.train.run import Run
from tests.train.elastic.groups import Groups, small_model


def generation(*names: str) -> Generation:
    seats = tuple(MemberInfo.create(name) for name in names)
    return Generation(run_id="run/0123456789ab", number=1, ballot=Ballot(0, "c"), seats=seats)


def test_an_error_that_is_its_own_cause_is_searched_once() -> None:
    error = RuntimeError("timed out waiting for rank 1")
    error.__cause__ = error
    members = generation("a-0", "b-0")
    assert suspects_of(error, members, members.seats[0].member_id) == [members.seats[1].member_id]


def test_a_spare_that_was_never_dealt_anything_takes_part_in_a_step_of_before() -> None:
    groups = Groups(healing=Healing, groups=3, min_groups=1)
    digests: dict[str, str] = {}
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(60, 6, generator=generator), torch.arange(60) % 3)

    def is_ready() -> bool:
        return any(kind == "heal_done" for kind, _ in groups.hub.events)

    def work(run: Run) -> None:
        model = small_model(1)
        trainer = Trainer(run, model, torch.optim.AdamW(model.parameters(), lr=1e-2))
        after = 0

        def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
            nonlocal after
            after += is_ready()
            if run.name in ("b-0", "c-0") and after == 5:  # both in one step, so that a seat is lost
                groups.kill(run.name)
            time.sleep(0.005)
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        for batch in run.shard(data, batch_size=12, epochs=1000):
            trainer.step(lambda batch=batch: loss_of(batch))
            place: Any = trainer.place
            if after > 25 and place is not None and place.num_seats == 2:
                run.end()
        digests[run.name] = state_digest(trainer.state.capture())

    for name in ("a-0", "b-0", "c-0"):
        groups.start(name, work)
    groups.start("s-0", work, wants="spare")
    groups.join()
    groups.close()
    assert groups.errors == {}
    assert set(digests) == {"a-0", "s-0"}
    assert len(set(digests.values())) == 1
