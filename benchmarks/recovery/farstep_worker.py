"""One replica group under farstep: a plain PyTorch loop.

Arguments: number of the group, file for the record, size of the model, samples per step and group, "seat" or "spare".
"""

from __future__ import annotations

import os
import sys
import time

import torch
from torch.nn import functional
from torch.utils.data import TensorDataset
from workload import Record, make_model, make_samples

import farstep


def main() -> None:
    """Trains until the process is ended, or the run has so many steps."""
    number, path, size, batch, wants = (
        int(sys.argv[1]),
        sys.argv[2],
        sys.argv[3],
        int(sys.argv[4]),
        sys.argv[5],
    )
    record = Record(path)
    model = make_model(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = farstep.join(name=f"group{number}", site=os.environ.get("BENCH_SITE", "a"), spare=wants == "spare")
    trainer = farstep.Trainer(
        run, model, optimizer, policy=farstep.Synchronous(batch=os.environ.get("BENCH_POLICY", "per_group"))
    )
    record.write("ready")
    samples = TensorDataset(*make_samples())
    sample_s = float(os.environ.get("BENCH_SAMPLE_US", "0")) / 1e6

    def loss_of(pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if sample_s:
            time.sleep(sample_s * len(pair[0]))
        return functional.cross_entropy(model(pair[0]), pair[1])

    steps = int(os.environ.get("BENCH_STEPS", "0")) or None
    while not run.is_over and trainer.committed != steps:
        for inputs, targets in run.shard(samples, batch_size=batch, steps=steps):
            loss = trainer.step(loss_of, (inputs, targets))
            report = trainer.report
            record.write(
                "step",
                step=trainer.committed,
                committed=True,
                groups=trainer.place.num_seats if trainer.place else 0,
                loss=loss,
                samples=report.samples if report else 0,
            )


main()
