"""One replica group under farstep: a plain PyTorch loop.

Arguments: number of the group, file for the record, size of the model, samples per step and group, "seat" or "spare".
"""

from __future__ import annotations

import os
import sys

import torch
from torch.nn import functional
from torch.utils.data import TensorDataset
from workload import Record, make_model, make_samples

import farstep


def main() -> None:
    """Trains until the process is ended."""
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
    trainer = farstep.Trainer(run, model, optimizer, policy=farstep.Synchronous(batch="per_group"))
    record.write("ready")
    samples = TensorDataset(*make_samples())
    while True:
        for inputs, classes in run.shard(samples, batch_size=batch):
            loss = trainer.step(lambda x=inputs, y=classes: functional.cross_entropy(model(x), y))
            record.write("step", step=trainer.committed, committed=True, groups=trainer.place.num_seats if trainer.place else 0, loss=loss)


main()
