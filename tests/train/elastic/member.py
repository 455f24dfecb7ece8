"""What a member of a test job runs: a small model on numbers of its own making, one JSON line per step."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import farstep
from farstep.train.healing import state_digest

PERIOD = 400
"""Steps of the learning rate's schedule, however long a job turns out to be."""


def main() -> None:
    import logging

    logging.basicConfig(
        level=os.environ.get("TEST_LOG", "WARNING"), format="%(relativeCreated)d %(name)s %(message)s"
    )
    steps = int(os.environ.get("TEST_STEPS", "40"))
    compute_s = float(os.environ.get("TEST_COMPUTE_S", "0.02"))
    width = int(os.environ.get("TEST_WIDTH", "64"))
    form = os.environ.get("TEST_FORM", "batch")
    end = Path(os.environ["TEST_END"]) if "TEST_END" in os.environ else None
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(4096, 32, generator=generator), torch.randint(0, 10, (4096,), generator=generator)
    )
    rate = os.environ.get("TEST_RATE_MBPS")
    run = farstep.join(healing=farstep.HealingSettings(rate_mbps=float(rate)) if rate else None)
    stop_as_told(run.link.membership)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width), nn.Linear(width, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=PERIOD)
    folder = os.environ.get("TEST_CHECKPOINTS")
    checkpoint = farstep.Checkpoint(folder, every_steps=10) if folder else None
    policy = farstep.Synchronous(step_deadline_s=float(os.environ.get("TEST_DEADLINE_S", "120")))
    every = os.environ.get("TEST_MEMORY_EVERY")
    trainer = farstep.Trainer(
        run,
        model,
        optimizer,
        policy=policy,
        scheduler=scheduler,
        clip_norm=1.0,
        checkpoint=checkpoint,
        memory=farstep.PeerMemory(every_steps=int(every)) if every else None,
    )

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        time.sleep(compute_s)
        hurt(run.name, trainer.committed)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    for batch in run.shard(data, batch_size=48, steps=steps):
        if form == "batch":
            trainer.step(loss_of, batch)
        else:
            trainer.step(lambda batch=batch: loss_of(batch))
        report = trainer.report
        say(
            step=report.step,
            loss=report.loss,
            groups=report.num_groups,
            samples=report.samples,
            attempts=report.attempts,
            generation=report.generation,
            ms=report.step_time_ns / 1e6,
            stalled_ms=report.stalled_ns / 1e6,
        )
        if end is not None and end.exists():  # how long a test needs is not known beforehand
            trainer.end()
    say(
        end=trainer.committed,
        complete=run.is_complete,
        digest=state_digest(trainer.state.capture()),
        rate=optimizer.param_groups[0]["lr"],
    )
    run.close()


def hurt(name: str, step: int) -> None:
    """Does to a member what the test wants done to it."""
    if name == os.environ.get("TEST_FAIL_GROUP") and step == int(os.environ["TEST_FAIL_STEP"]):
        raise ZeroDivisionError("a mistake in the loss")
    if name == os.environ.get("TEST_STUCK_GROUP") and step >= int(os.environ["TEST_STUCK_STEP"]):
        say(stuck=step)
        time.sleep(1e6)


def stop_as_told(membership: Any) -> None:
    """Holds the member before it publishes a certain value: makes a file, and waits until somebody removes it."""
    if "TEST_POINT" not in os.environ:
        return
    point, file = os.environ["TEST_POINT"], Path(os.environ["TEST_POINT_FILE"])
    publish = membership.publish
    was_there: list[str] = []

    def held(scope: str, key: str, value: bytes) -> None:
        if point in key and not was_there:
            was_there.append(key)
            file.touch()
            while file.exists():
                time.sleep(0.005)
        publish(scope, key, value)

    membership.publish = held


def say(**values: object) -> None:
    sys.stdout.write(json.dumps({"t": time.monotonic(), **values}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
