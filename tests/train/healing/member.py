"""What a member of a healing job runs: a model of a given size, one JSON line per step, and what healing did."""

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
from farstep.train.healing import Healing, HealingSettings, state_digest

made: list[Healing] = []


def make_healing(**parts: Any) -> Healing:
    rate = os.environ.get("TEST_RATE_MBPS")
    # On a busy machine healing would be put off for the sake of the others' steps; what is tested is that it works.
    settings = HealingSettings(
        rate_mbps=float(rate) if rate else None, silence_s=1.5, slowdown=1e6, follow_slowdown=None
    )
    made.append(Healing(settings=settings, **parts))
    return made[-1]


def say(**values: object) -> None:
    sys.stdout.write(json.dumps({"t": time.monotonic(), **values}) + "\n")
    sys.stdout.flush()


def main() -> None:
    steps = int(os.environ.get("TEST_STEPS", "100"))
    width = int(os.environ.get("TEST_WIDTH", "600"))
    end = Path(os.environ["TEST_END"]) if "TEST_END" in os.environ else None
    compute_s = float(os.environ.get("TEST_COMPUTE_S", "0.02"))
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(512, width, generator=generator)
    data = TensorDataset(samples, samples.roll(1, 0))
    run = farstep.join()
    run._healing = make_healing
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = farstep.Trainer(run, model, optimizer, clip_norm=1.0)

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        time.sleep(compute_s)
        return (model(batch[0]) - batch[1]).square().mean()

    for batch in run.shard(data, batch_size=12, steps=steps):
        trainer.step(loss_of, batch)
        report = trainer.report
        say(
            step=report.step,
            loss=report.loss,
            groups=report.num_groups,
            attempts=report.attempts,
            ms=report.step_time_ns / 1e6,
            chunks=made[-1].served.chunks if made else 0,
        )
        if end is not None and end.exists():  # how long a test needs is not known beforehand
            trainer.end()
    pulled = made[-1].last_pull if made else None
    say(
        end=trainer.committed,
        digest=state_digest(trainer.state.capture()),
        held=made[-1].bytes_held if made else 0,
        pulled=None
        if pulled is None
        else {
            "bytes": pulled.length_bytes,
            "fetched": pulled.num_fetched,
            "rejected": pulled.num_rejected,
            "kept": pulled.num_kept,
            "sources": {name.split("/")[0]: count for name, count in pulled.chunks_by_source.items()},
        },
    )
    run.close()


if __name__ == "__main__":
    main()
