"""How the members of a run agree on a step, as the user states it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from farstep.fabric.errors import quoted
from farstep.fabric.expected import COUNT_MAX, expect_number, expect_whole
from farstep.train.arguments import expect_flag
from farstep.train.errors import ConfigError

__all__ = ["Synchronous"]

BUCKET_BYTES_MAX = 1 << 34
"""Largest bucket; larger ones would only delay the first."""

_BATCHES = ("global", "per_group")
_SCALINGS = ("none", "linear", "sqrt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronous:
    """Every step is the mean over the samples of all replica groups, and all apply it or none does.

    Attributes:
        batch: what happens to the batch when members come and go. ``global``: the whole batch of a step stays the same
            and is dealt anew, so that neither learning rate nor loss curve change. ``per_group``: every replica group
            keeps its own batch, so that the whole batch grows and shrinks with the members.
        lr_scaling: what happens to the learning rate of a step with more or fewer samples than the first step of the
            run had: ``none``, ``linear`` in the ratio, or its square root. With a constant global batch there is
            nothing to scale.
        bucket_bytes: gradients travel in pieces of about this size while backward computes the next ones. 4 MiB.
        skip_not_finite: leave out a step whose gradient or loss is not finite, on all replica groups alike.
        refused_steps_max: so many steps in a row without a finite gradient end the run: it has diverged.
        step_deadline_s: a member whose part of a step does not come within this long after everybody else's is
            reported as failed. Only for workers that hang while their process lives and answers; a process that dies
            is noticed at once and one that is stopped within the coordinator's silence limit. It must be longer than
            what one member alone may do while the others wait: an evaluation, a compiler.
        stall_s: a member whose training thread has been at work of its own for longer than this, ten times the usual
            work of a step, and between two steps three times its longest pause so far, is stuck. When the step
            deadline passes and exactly one is, it is given up at once instead of after three more attempts; the first
            three steps are exempt. `math.inf`: nobody is ever taken for stuck.
    """

    batch: Literal["global", "per_group"] = "global"
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    bucket_bytes: int = 4 * 1024 * 1024
    skip_not_finite: bool = True
    refused_steps_max: int = 10
    step_deadline_s: float = 120.0
    stall_s: float = 2.0

    def __post_init__(self) -> None:
        for name, value, valid in (
            ("batch", self.batch, _BATCHES),
            ("lr_scaling", self.lr_scaling, _SCALINGS),
        ):
            if value not in valid:
                raise ConfigError(f"{name} is {quoted(value)}; valid are {', '.join(valid)}")
        expect_whole("bucket_bytes", self.bucket_bytes, 4096, BUCKET_BYTES_MAX)
        expect_flag("skip_not_finite", self.skip_not_finite, may_be_none=False)
        expect_whole("refused_steps_max", self.refused_steps_max, 1, COUNT_MAX)
        expect_number("step_deadline_s", self.step_deadline_s, 1e7)
        expect_number("stall_s", self.stall_s)

    def lr_factor(self, samples: int, reference_samples: int) -> float:
        """What the learning rate of a step is multiplied by.

        Args:
            samples: samples of the step.
            reference_samples: samples of the first step of the run.
        """
        if self.lr_scaling == "none" or reference_samples < 1 or samples == reference_samples:
            return 1.0
        ratio: float = samples / reference_samples
        return ratio if self.lr_scaling == "linear" else ratio**0.5
