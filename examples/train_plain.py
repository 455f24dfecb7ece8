"""A plain PyTorch training loop, made to survive by five lines (marked with #>).

One replica group, alone:

    python examples/train_plain.py

Three replica groups and a hot spare on this machine; kill one of them and watch the others go on:

    farstep local --groups 3 --spares 1 examples/train_plain.py

On several machines start one coordinator, and this program wherever there is a machine to train on:

    farstep coordinator --tls certificates --host 0.0.0.0 --groups 3
    FARSTEP_COORDINATOR=host:7077 FARSTEP_TLS=certificates FARSTEP_GROUP=a python examples/train_plain.py
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import farstep  # > 1

STEPS = int(os.environ.get("STEPS", "200"))


def main() -> None:
    """Trains a small classifier on numbers made up here."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, 32, generator=generator)
    data = TensorDataset(
        inputs, (inputs[:, :10] + 0.5 * torch.randn(4096, 10, generator=generator)).argmax(1)
    )
    loader = DataLoader(data, batch_size=64, shuffle=True)

    model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    run = farstep.join()  # > 2
    trainer = farstep.Trainer(run, model, optimizer)  # > 3
    for inputs, targets in run.shard(loader, steps=STEPS):  # > 4; was: for inputs, targets in loader
        # was: optimizer.zero_grad(); loss = ...; loss.backward(); optimizer.step()
        loss = trainer.step(lambda: nn.functional.cross_entropy(model(inputs), targets))  # > 5  # noqa: B023
        if trainer.report is not None and trainer.committed % 20 == 0:  # None if the run ended meanwhile
            groups = trainer.report.num_groups
            print(f"step {trainer.committed}  loss {loss:.4f}  replica groups {groups}", flush=True)
    run.close()


if __name__ == "__main__":
    main()
