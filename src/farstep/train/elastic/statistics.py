"""Buffers that a forward pass changes: what normalisation layers count and average, beside the parameters.

A forward pass belongs to an attempt at a step, and an attempt may come to nothing. So what it changes is kept before
and put back after, and what a committed step makes of it is reduced with the gradient: the same on all replicas, also
on those that computed nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Statistics"]


class Statistics:
    """The buffers of a model.

    Running means and variances are averaged over the members of a step, and so is the number of batches that each has
    counted in it, in whole numbers. Other buffers that are part of the model's state are put back, not averaged: what
    changes them must come to the same on all members.

    Args:
        model: its buffers are looked up once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._running: list[Tensor] = []
        self._counters: list[Tensor] = []
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                found = (module.running_mean, module.running_var)
                self._running += [buffer for buffer in found if buffer is not None]
                if module.num_batches_tracked is not None:
                    self._counters.append(module.num_batches_tracked)
        normed = [*self._running, *self._counters]
        known = {id(buffer) for buffer in normed}
        persistent = model.state_dict(keep_vars=True).values()
        others = [
            value
            for value in persistent
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and id(value) not in known
        ]
        self._normed = [(buffer, buffer.detach().clone()) for buffer in normed]
        self._others = [(buffer, buffer.detach().clone()) for buffer in others]
        self._versions = [buffer._version for buffer, _ in self._others]
        self._before = [kept for _, kept in self._normed[len(self._running) :]]

    @property
    def num_numbers(self) -> int:
        """Float32 numbers that travel with every step."""
        return sum(buffer.numel() for buffer in self._running) + len(self._counters)

    def keep(self) -> None:
        """Notes what everything is before an attempt."""
        for buffer, kept in self._normed:  # the layers' kernels change these without a new version
            kept.copy_(buffer)
        for index, (buffer, kept) in enumerate(self._others):
            if buffer._version != self._versions[index]:
                kept.copy_(buffer)
                self._versions[index] = buffer._version

    def put_back(self) -> None:
        """Makes everything what it was at the last :meth:`keep`."""
        with torch.no_grad():
            for buffer, kept in self._normed:
                buffer.copy_(kept)
            for index, (buffer, kept) in enumerate(self._others):
                if buffer._version != self._versions[index]:
                    buffer.copy_(kept)
                    self._versions[index] = buffer._version

    def write(self, numbers: Tensor) -> None:
        """Writes this member's share of a step.

        Args:
            numbers: float32, at least :attr:`num_numbers` of them.
        """
        start = 0
        for buffer in self._running:
            numbers[start : start + buffer.numel()] = buffer.reshape(-1)
            start += buffer.numel()
        for index, (counter, before) in enumerate(zip(self._counters, self._before, strict=True)):
            numbers[start + index] = int(counter) - int(before)

    def read(self, numbers: Tensor) -> None:
        """Takes over the mean of all members' shares; everything must be as it was before the step."""
        start = 0
        for buffer in self._running:
            buffer.copy_(numbers[start : start + buffer.numel()].view_as(buffer))
            start += buffer.numel()
        for index, counter in enumerate(self._counters):
            counter += round(float(numbers[start + index]))
