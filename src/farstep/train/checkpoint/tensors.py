"""The tensors of a state: their names in a checkpoint, and copies of them that training cannot change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

__all__ = ["Staging", "tensor_names"]

_MAPPINGS = ("d", "o", "C")
_SEQUENCES = ("l", "t", "s")
_TENSORS = ("T", "N", "n")


def tensor_names(skeleton: Any) -> list[str]:
    """Returns a readable name, unique within the state, for every tensor of a skeleton.

    Args:
        skeleton: from `farstep.train.healing.state_codec.split`.

    Returns:
        Names such as ``model.layer.weight``, by number of the tensor; one that occurs in several
        places has the name of the first.
    """
    found: dict[int, str] = {}
    taken: set[str] = set()
    for index, path in _places(skeleton, ()):
        if index in found:
            continue
        plain = ".".join(path) or "state"
        name, copy = plain, 1
        while name in taken:  # such as the keys 0 and "0" of one dict
            copy += 1
            name = f"{plain}#{copy}"
        taken.add(name)
        found[index] = name
    return [found[index] for index in range(len(found))]


def _places(node: Any, path: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields number and path of every tensor below a node, in the order in which they were numbered."""
    if not isinstance(node, dict):
        return
    for tag, body in node.items():
        if tag in _TENSORS:
            yield body, path
        elif tag in _MAPPINGS:
            for key, value in body:
                yield from _places(value, (*path, _text_of(key)))
        elif tag in _SEQUENCES:
            for number, value in enumerate(body):
                yield from _places(value, (*path, str(number)))
        elif tag == "m":
            yield from _places(body, (*path, "_metadata"))


def _text_of(key: Any) -> str:
    if isinstance(key, dict):
        return str(next(iter(key.values())))
    return str(key)


class Staging:
    """Memory that tensors are copied to before they are written, kept for the next time.

    The copy is all that a step waits for. On a machine with an accelerator the memory is pinned.
    """

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def copy(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns copies in the memory of the machine; those of the call before become invalid.

        Distributed tensors stay distributed: this rank's part is copied.
        """
        kept = self._kept if len(self._kept) == len(tensors) else [None] * len(tensors)
        pins = torch.cuda.is_available()
        self._kept, copies = [], []
        for tensor, old in zip(tensors, kept, strict=True):
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            fits = old is not None and old.shape == local.shape and old.dtype == local.dtype
            target = old if fits and old is not None else _allocated(local, pins)
            target.copy_(local, non_blocking=pins)
            self._kept.append(target)
            copies.append(_like(tensor, target))
        if pins:
            torch.cuda.synchronize()
        return copies

    @property
    def length_bytes(self) -> int:
        """Bytes held."""
        return sum(tensor.nbytes for tensor in self._kept)


def _allocated(local: Tensor, pins: bool) -> Tensor:
    return torch.empty(local.shape, dtype=local.dtype, device="cpu", pin_memory=pins)


def _like(tensor: Tensor, local: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return local
    return DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
