"""Whether a state fits the member that is given it, and if not, in what the two differ.

A member that trains something else, or by other rules, is refused before anything of it is changed: the message
names what differs and both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from farstep.fabric.errors import quoted
from farstep.train.elastic.gradients import local_part
from farstep.train.errors import ConfigError

__all__ = ["check_data", "check_kinds", "check_model", "check_optimizer", "check_settings", "kinds_of"]

_DATA_SETTINGS = ("num_samples", "seed", "shuffle", "batch", "batch_size", "drop_last")
"""What all members must say alike about the data; the rest of its state is a position."""


def kinds_of(optimizer: Optimizer, scheduler: Any, extras: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the classes of what a state is kept of, by name."""
    return {
        "optimizer": type(optimizer).__name__,
        "scheduler": None if scheduler is None else type(scheduler).__name__,
        "user": {name: type(item).__name__ for name, item in sorted(extras.items())},
    }


def check_kinds(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raises ConfigError if a captured state is of other classes than this member's."""
    if set(state["user"]) != set(own["user"]):
        raise ConfigError(
            f"the run keeps the state of {sorted(state['user'])}, this member of {sorted(own['user'])}; "
            "pass the same `state` to Trainer everywhere"
        )
    kinds = state.get("kinds")
    if kinds is None:  # a checkpoint from before they were noted
        if (state["scheduler"] is None) != (own["scheduler"] is None):
            there = "no scheduler" if state["scheduler"] is None else "a scheduler"
            raise ConfigError(f"the state to go on from has {there}, this member {_named(own['scheduler'])}")
        return
    for what in ("optimizer", "scheduler"):
        if kinds[what] != own[what]:
            raise ConfigError(
                f"{what}: the state to go on from has {_named(kinds[what])}, this member {_named(own[what])}"
            )
    for name, kind in own["user"].items():
        if kinds["user"][name] != kind:
            raise ConfigError(
                f"state[{quoted(name)}]: the state to go on from has a {kinds['user'][name]}, this member a {kind}"
            )


def check_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Raises ConfigError if a captured model has other tensors."""
    own = model.state_dict()
    if set(own) != set(state):
        added, missing = sorted(set(own) - set(state)), sorted(set(state) - set(own))
        sides = [
            f"{', '.join(names[:3])}{' and more' if len(names) > 3 else ''} {where}"
            for names, where in ((missing, "is only there"), (added, "is only here"))
            if names
        ]
        raise ConfigError(f"the run trains another model: {'; '.join(sides)}")
    for name, value in own.items():
        if not isinstance(value, Tensor):
            continue
        target, source = local_part(value), local_part(state[name])
        if target.shape != source.shape or target.dtype != source.dtype:
            raise ConfigError(
                f"the run trains another model: {name} is {source.dtype} {tuple(source.shape)} there "
                f"and {target.dtype} {tuple(target.shape)} here"
            )


def check_optimizer(optimizer: Optimizer, state: Mapping[str, Any], *, is_same_kind: bool) -> None:
    """Raises ConfigError if a captured optimizer has other groups of parameters.

    Args:
        optimizer: this member's.
        state: the captured one's `state_dict`.
        is_same_kind: whether both are known to be of one class; then settings that one of two versions of torch
            lacks are no matter.
    """
    name = type(optimizer).__name__
    there = [len(group["params"]) for group in state["param_groups"]]
    here = [len(group["params"]) for group in optimizer.param_groups]
    if there != here:
        raise ConfigError(
            f"optimizer {name}: the state to go on from has groups of {_listed(there)} parameters, "
            f"this member of {_listed(here)}"
        )
    if is_same_kind:
        return
    for number, (other, own) in enumerate(zip(state["param_groups"], optimizer.param_groups, strict=True)):
        missing, added = sorted(set(own) - set(other)), sorted(set(other) - set(own) - {"initial_lr"})
        if missing or added:
            raise ConfigError(
                f"the state to go on from is of another optimizer than {name}: group {number} has "
                f"{_listed(added) or 'nothing'} there that is not here, and {_listed(missing) or 'nothing'} here "
                "that is not there"
            )


def check_settings(theirs: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raises ConfigError if a member of a run under way goes by other settings."""
    for name, value in own.items():
        if name in theirs and theirs[name] != value:
            raise ConfigError(
                f"{name} is {_shown(theirs[name])} in the run and {_shown(value)} here; all members need the same"
            )


def check_data(theirs: Mapping[str, Any] | None, own: Mapping[str, Any] | None) -> None:
    """Raises ConfigError if a member of a run under way deals the data by other settings."""
    if theirs is not None and own is not None:
        settings = {f"run.shard: {name}": own[name] for name in _DATA_SETTINGS if name in own}
        check_settings({f"run.shard: {name}": value for name, value in theirs.items()}, settings)


def _named(kind: str | None) -> str:
    return "none" if kind is None else kind


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in values)
