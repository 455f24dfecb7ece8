"""A model of Hugging Face transformers (a tiny GPT-2 with random weights: nothing is downloaded) on bytes of text.

pip install transformers
python examples/train_transformers.py
farstep local --groups 2 examples/train_transformers.py
"""

import inspect
import os

import torch
from torch.utils.data import DataLoader, Dataset

import farstep

STEPS = int(os.environ.get("STEPS", "60"))
CONTEXT = 64


class Bytes(Dataset[dict[str, torch.Tensor]]):
    """Windows of the source text of a few modules of Python's standard library."""

    def __init__(self) -> None:
        text = b"".join(inspect.getsource(module).encode() for module in (inspect, os))
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self._bytes) // CONTEXT

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self._bytes[index * CONTEXT : (index + 1) * CONTEXT].long()
        return {"input_ids": window, "labels": window}


def main() -> None:
    """Trains the model for a few steps."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import GPT2Config, GPT2LMHeadModel  # loads for seconds, so before join

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256,
            n_positions=CONTEXT,
            n_embd=64,
            n_layer=2,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    with farstep.join() as run:
        trainer = farstep.Trainer(run, model, optimizer, clip_norm=1.0)
        for batch in run.shard(DataLoader(Bytes(), batch_size=16, shuffle=True), steps=STEPS):
            loss = trainer.step(lambda batch: model(**batch).loss, batch)
            if trainer.committed % 10 == 0:
                print(f"step {trainer.committed}  loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
