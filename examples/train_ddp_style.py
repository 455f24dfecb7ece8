"""A loop in the style of DistributedDataParallel: one process per replica, started by torchrun.

    farstep coordinator --insecure --groups 2 &
    export FARSTEP_COORDINATOR=ws://127.0.0.1:7077 FARSTEP_RANKS_PER_GROUP=1 FARSTEP_GROUP=node
    torchrun --standalone --nproc-per-node=2 examples/train_ddp_style.py

Without coordinator it trains alone:

    python examples/train_ddp_style.py

Where the loop had init_process_group, DistributedDataParallel and DistributedSampler, it has join, Trainer and shard.
FARSTEP_RANKS_PER_GROUP=1 makes each process of torchrun a replica group of its own (node-0, node-1, ...). torchrun
ends all its processes when one of them dies, so on a cluster start one torchrun per machine or site.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import farstep

EPOCHS = int(os.environ.get("EPOCHS", "3"))


def main() -> None:
    """Trains a small convolutional classifier with a scheduler, clipping, checkpoints and gradient accumulation."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2048, 1, 12, 12, generator=generator)
    labels = images.mean((1, 2, 3)).mul(40).long().clamp(-2, 2) + 2
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True, drop_last=True)

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 8 * 8, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))

    folder = os.environ.get("CHECKPOINTS")
    with farstep.join() as run:
        trainer = farstep.Trainer(
            run,
            model,
            optimizer,
            scheduler=scheduler,
            clip_norm=1.0,
            checkpoint=farstep.Checkpoint(folder, every_steps=50) if folder else None,
        )

        def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        for batch in run.shard(loader, epochs=EPOCHS):
            # With the batch as an argument a failed step deals its samples anew, so that the global batch stays whole.
            loss = trainer.step(loss_of, batch)
            if trainer.committed % 16 == 0:
                rate = optimizer.param_groups[0]["lr"]
                print(f"step {trainer.committed}  loss {loss:.4f}  learning rate {rate:.4f}", flush=True)


if __name__ == "__main__":
    main()
