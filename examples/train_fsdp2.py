"""A model that several processes hold together (FSDP2), trained by several such replica groups.

One replica group, alone:

    torchrun --standalone --nproc-per-node=2 examples/train_fsdp2.py

Two replica groups of two ranks, each started by its own torchrun, as on two sites:

    farstep coordinator --insecure --groups 2 &
    export FARSTEP_COORDINATOR=ws://127.0.0.1:7077
    FARSTEP_GROUP=a torchrun --nproc-per-node=2 --master-port=29501 examples/train_fsdp2.py &
    FARSTEP_GROUP=b torchrun --nproc-per-node=2 --master-port=29502 examples/train_fsdp2.py

Inside a replica group this is plain FSDP2 over gloo; rank i of each replica group talks to rank i of the others.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import farstep

STEPS = int(os.environ.get("STEPS", "100"))


def main() -> None:
    """Trains a small classifier on numbers made up here."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, 32, generator=generator)
    data = TensorDataset(
        inputs, (inputs[:, :10] + 0.5 * torch.randn(4096, 10, generator=generator)).argmax(1)
    )

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    with farstep.join() as run:
        trainer = farstep.Trainer(run, model, optimizer, clip_norm=1.0)
        for batch in run.shard(DataLoader(data, batch_size=64, shuffle=True), steps=STEPS):
            loss = trainer.step(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]), batch)
            if trainer.report is not None and trainer.committed % 20 == 0 and dist.get_rank() == 0:
                print(
                    f"step {trainer.committed}  loss {loss:.4f}  replica groups {trainer.report.num_groups}",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
