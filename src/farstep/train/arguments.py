"""Arguments of the training interface that are not what they should be, told in one line before any work."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from farstep.engine import EndpointProfile, PortConfig
from farstep.fabric.errors import quoted
from farstep.fabric.expected import (
    expect,
    expect_count,
    expect_folder,
    expect_like,
    expect_list,
    expect_whole,
)
from farstep.membership.records import NAME_PATTERN
from farstep.train.errors import ConfigError
from farstep.train.healing import HealingSettings

if TYPE_CHECKING:
    from farstep.train.environment import Environment

__all__ = [
    "expect_counts",
    "expect_flag",
    "expect_functions",
    "expect_known",
    "expect_loss",
    "expect_replica",
    "expect_run",
    "expect_seed",
    "expect_settings",
    "expect_who",
]

NAME = re.compile(NAME_PATTERN)
SITE_CHARACTERS_MAX = 64
PORTS_MAX = 32

_SHOWN_MAX = 3
"""Names that a message lists."""


def expect_counts(**counts: object) -> None:
    """Refuses what is neither None nor a whole number of at least 0.

    Raises:
        ConfigError: naming it and what is valid.
    """
    for name, value in counts.items():
        expect_count(name, value, may_be_none=True)


def expect_flag(name: str, value: object, *, may_be_none: bool = True) -> None:
    """Refuses what is neither True nor False, nor None where that stands for a default.

    Raises:
        ConfigError: naming what is valid.
    """
    if not (isinstance(value, bool) or (may_be_none and value is None)):
        raise ConfigError(f"{name} = {quoted(value)}: must be True or False{', or None' * may_be_none}")


def expect_seed(value: object) -> None:
    """Refuses what no random numbers can start from.

    Raises:
        ConfigError: naming the bounds.
    """
    expect_whole("seed", value, -(2**63), 2**63 - 1)


def expect_known(given: Iterable[str], known: Sequence[str], what: str) -> None:
    """Refuses a named argument that does not exist.

    Raises:
        ConfigError: naming it and the nearest that does.
    """
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ";"
            raise ConfigError(f"{what} has no argument {name}{hint} valid: {', '.join(known)}")


# -- farstep.join -------------------------------------------------------------------------------------


def expect_settings(
    coordinator: object,
    name: object,
    site: object,
    spare: object,
    tls: object,
    run: object,
    ports: object,
    profile: object,
    healing: object,
) -> None:
    """Checks the arguments of :func:`farstep.join`.

    Raises:
        ConfigError: one of them does not fit.
    """
    if coordinator is not None and not isinstance(coordinator, str):
        addresses = expect_list("coordinator", coordinator, "addresses")
        for address in addresses:
            expect("coordinator", address, str, "an address, or a list of addresses")
        if not addresses:
            raise ConfigError(
                "coordinator = []: must name at least one address; None for what the environment says"
            )
    for label, value in (("name", name), ("run", run)):
        if value is not None and not (isinstance(value, str) and NAME.fullmatch(value)):
            raise ConfigError(
                f"{label} = {quoted(value)}: must have letters, digits, '.', '_' and '-', at most 64, "
                "and begin with a letter or a digit"
            )
    if site is not None:
        expect("site", site, str, "text")
    expect_flag("spare", spare)
    if tls is not None:
        expect_folder("tls", tls)
        if not Path(tls).is_dir():  # type: ignore[arg-type]
            raise ConfigError(
                f"tls = {quoted(str(tls))}: there is no such folder; `farstep certificates` makes one"
            )
    if ports is not None:
        count = 0
        for port in expect_list("ports", ports, 'addresses such as "10.0.0.1:0", or PortConfig objects'):
            expect(
                "ports",
                port,
                (str, PortConfig),
                'a list of addresses such as "10.0.0.1:0", or PortConfig objects',
            )
            count += 1
        if not 1 <= count <= PORTS_MAX:
            raise ConfigError(
                f"ports has {count} entries: must be 1 to {PORTS_MAX}, one per plane of the network"
            )
    if profile is not None:
        expect("profile", profile, EndpointProfile, "a farstep.engine.EndpointProfile, or None")
    if healing is not None:
        expect("healing", healing, HealingSettings, "a farstep.HealingSettings, or None")


def expect_who(environment: Environment) -> None:
    """Checks what the environment and the arguments say together.

    Raises:
        ConfigError: a name cannot be used.
    """
    if not NAME.fullmatch(environment.run):
        raise ConfigError(
            f"FARSTEP_RUN = {quoted(environment.run)}: must have letters, digits, '.', '_' and '-', at most 64, "
            "and begin with a letter or a digit"
        )
    site = environment.site
    if len(site) > SITE_CHARACTERS_MAX or not site.isprintable():
        raise ConfigError(
            f"site = {quoted(site)}: must be at most {SITE_CHARACTERS_MAX} characters on one line (FARSTEP_SITE)"
        )


# -- farstep.Trainer ----------------------------------------------------------------------------------


def expect_run(run: object) -> None:
    """Refuses what is no run.

    Raises:
        ConfigError: it is something else.
    """
    _expect_object("run", run, ("environment", "bind", "healing_factory"), "what farstep.join() returns")


def expect_replica(
    model: object,
    optimizer: object,
    *,
    scheduler: object,
    state: object,
    clip_norm: object,
    seed: object,
    checkpoint: object,
    memory: object,
) -> None:
    """Checks what a trainer is to train, and with what.

    Raises:
        ConfigError: one of them does not fit.
    """
    from farstep.train.checkpoint.memory import PeerMemory

    expect("model", model, nn.Module, "a torch.nn.Module")
    expect("optimizer", optimizer, Optimizer, "a torch.optim.Optimizer over the parameters of the model")
    assert isinstance(model, nn.Module)
    assert isinstance(optimizer, Optimizer)
    _expect_same_parameters(model, optimizer)
    _expect_plain_step(optimizer)
    if scheduler is not None:
        _expect_object(
            "scheduler", scheduler, ("step", "state_dict", "load_state_dict"), "a learning-rate scheduler"
        )
    if state is not None:
        expect("state", state, Mapping, "a table of objects by name, or None")
        assert isinstance(state, Mapping)
        for name, item in state.items():
            expect("a name in state", name, str, "text")
            _expect_object(
                f"state[{quoted(name)}]",
                item,
                ("state_dict", "load_state_dict"),
                "an object with state_dict() and load_state_dict()",
            )
    if clip_norm is not None and (
        not isinstance(clip_norm, int | float)
        or isinstance(clip_norm, bool)
        or not (clip_norm > 0 and math.isfinite(clip_norm))
    ):
        raise ConfigError(f"clip_norm = {quoted(clip_norm)}: must be a finite number above 0, or None")
    expect_seed(seed)
    if checkpoint is not None:
        methods = ("attach", "load_newest", "at_boundary", "close")
        _expect_object("checkpoint", checkpoint, methods, "a farstep.Checkpoint, or None")
    if memory is not None:
        expect("memory", memory, PeerMemory, "a farstep.PeerMemory, or None")


def _expect_object(name: str, value: object, methods: Sequence[str], what: str) -> None:
    if isinstance(value, type):
        raise ConfigError(f"{name} = {quoted(value)}: must be {what}, not its class")
    expect_like(name, value, methods, what)


def _expect_same_parameters(model: nn.Module, optimizer: Optimizer) -> None:
    """The optimizer moves the parameters that backward reaches, no others and no fewer."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    foreign = len(given - set(names))
    if foreign:
        raise ConfigError(
            f"the optimizer has {foreign} of {len(given)} parameters that are not the model's; make it from "
            "model.parameters() of this model, after whatever replaces them (fully_shard, .to(device))"
        )
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigError("model has no parameter with requires_grad=True; there is nothing to train")
    missing = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in given
    ]
    if missing:
        more = f" and {len(missing) - _SHOWN_MAX} more" if len(missing) > _SHOWN_MAX else ""
        raise ConfigError(
            f"the optimizer lacks {', '.join(missing[:_SHOWN_MAX])}{more} of the model; give it all of "
            "model.parameters(), or call requires_grad_(False) on those that are not to be trained"
        )


def _expect_plain_step(optimizer: Optimizer) -> None:
    """The trainer steps it once per step, without computing the loss again."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ConfigError(
            f"{type(optimizer).__name__} computes the loss several times a step, which is not possible here; "
            "valid: an optimizer whose step() needs no closure, such as SGD or AdamW"
        )


# -- trainer.step -------------------------------------------------------------------------------------


def expect_functions(function: object) -> list[Any]:
    """Returns the functions of a step.

    Raises:
        ConfigError: there is none, or something else among them.
    """
    functions = (
        list(function) if isinstance(function, Sequence) and not isinstance(function, str) else [function]
    )
    if not functions or not all(callable(one) for one in functions):
        raise ConfigError(
            f"trainer.step({quoted(function)}): must be a function that returns the loss, or a list of at least one"
        )
    return functions


def expect_loss(loss: object) -> Tensor:
    """Returns what a step's function returned, if backward can start from it.

    Raises:
        ConfigError: saying what it is instead.
    """
    if not isinstance(loss, Tensor):
        found = f"a {type(loss).__name__}"
    elif loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}"
    elif not loss.is_floating_point():
        found = f"a tensor of type {loss.dtype}"
    elif not loss.requires_grad:
        found = "a tensor without gradient (detached, or computed under torch.no_grad() or from no parameter)"
    else:
        return loss
    raise ConfigError(
        f"the function of the step returned {found}; it must return the loss: one number, the mean over "
        "the batch, as a floating-point tensor that backward can start from"
    )
