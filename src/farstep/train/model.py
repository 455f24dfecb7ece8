"""A decoder-only transformer over bytes.

Pre-norm blocks, causal attention, one table for input and output bytes. Small enough for a
laptop, built like the large ones.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from farstep.train.config import ModelConfig

__all__ = ["ByteTransformer", "next_byte_loss"]

VOCABULARY = 256


class Block(nn.Module):
    """Attention and feed-forward, each added to the residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Maps (batch, length, width) to the same shape."""
        batch, length, width = hidden.shape
        split = self.query_key_value(self.attention_norm(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        inner = functional.gelu(self.expand(self.feed_forward_norm(hidden)), approximate="tanh")
        contracted: Tensor = self.contract(inner)
        return hidden + contracted


class ByteTransformer(nn.Module):
    """Predicts the next byte at every position.

    Args:
        config: shape of the model.
        seed: seed of the initial parameters; equal seeds give bit-identical parameters.
    """

    def __init__(self, config: ModelConfig, *, seed: int) -> None:
        super().__init__()
        self.byte_table = nn.Embedding(VOCABULARY, config.width)
        self.position_table = nn.Embedding(config.context_bytes, config.width)
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.width)
        self._initialise(config.layers, seed)

    def _initialise(self, layers: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            # What is added to the residual stream starts smaller: depth must not raise its variance.
            is_branch_end = name.endswith(("attention_out.weight", "contract.weight"))
            deviation = 0.02 / math.sqrt(2 * layers) if is_branch_end else 0.02
            nn.init.normal_(parameter, std=deviation, generator=generator)

    def forward(self, bytes_in: Tensor) -> Tensor:
        """Maps int64 (batch, length) to logits, float32 (batch, length, 256)."""
        hidden = self.byte_table(bytes_in) + self.position_table.weight[: bytes_in.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(self.final_norm(hidden), self.byte_table.weight)


def next_byte_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Returns the mean cross entropy in nats per byte.

    Args:
        model: maps int64 (batch, context) to logits.
        windows: uint8 (batch, context + 1); each position predicts the byte after it.
    """
    text = windows.long()
    logits = model(text[:, :-1])
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), text[:, 1:].reshape(-1))
