"""A hash of everything a replica would go on from."""

from collections.abc import Iterator

import torch
import xxhash
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["state_hash"]


def state_hash(model: nn.Module, optimizer: Optimizer) -> str:
    """Returns 128 bits of XXH3, in hexadecimal, over all parameters, buffers and optimizer state.

    Names, shapes and types are hashed with the values, in the order of their names, so two states
    have the same hash only if training would go on from them in the same way.
    """
    digest = xxhash.xxh3_128()
    for name, tensor in _named_state(model, optimizer):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _named_state(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    yield from sorted(model.state_dict().items())
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, name in sorted(names.items(), key=lambda item: item[1]):
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            yield f"{name} {key}", torch.as_tensor(value)
