"""Replica groups as threads of one process, over a transport in memory and a membership in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from farstep.membership import LocalHub, MemberInfo, MembershipConfig
from farstep.testing.memory_engine import MemoryFabric
from farstep.train.elastic.inner import AloneInside
from farstep.train.elastic.link import MembershipLink
from farstep.train.environment import Environment
from farstep.train.run import Run

_seeding = threading.Lock()


def small_model(seed: int = 0) -> nn.Module:
    with _seeding:  # the generator is that of the process
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Killed(BaseException):
    """Ends a member's thread as kill -9 ends a process: nothing is said to anybody."""


class Groups:
    """Starts members and collects what becomes of them."""

    def __init__(self, healing: Callable[..., Any] | None = None, **config: Any) -> None:
        config.setdefault("settle_s", 0.0)
        self.hub = LocalHub(MembershipConfig(**config))
        self.fabric = MemoryFabric()
        self.healing = healing
        self.memberships: dict[str, Any] = {}
        self.endpoints: dict[str, Any] = {}
        self.runs: dict[str, Run] = {}
        self.results: dict[str, Any] = {}
        self.errors: dict[str, BaseException] = {}
        self.threads: dict[str, threading.Thread] = {}

    def run(self, name: str, *, wants: str = "seat") -> Run:
        def connect(info: MemberInfo) -> Any:
            self.memberships[name] = self.hub.join(name, wants=wants)
            return self.memberships[name]

        link = MembershipLink(MemberInfo.create(name), connect)
        self.endpoints[name] = self.fabric.endpoint(name)
        run = Run(
            Environment(launcher="local", group=name),
            link,
            self.endpoints[name],
            AloneInside(),
            healing=self.healing,
        )
        self.runs[name] = run
        return run

    def start(self, name: str, work: Callable[[Run], Any], *, wants: str = "seat") -> None:
        def body() -> None:
            run = self.run(name, wants=wants)
            try:
                self.results[name] = work(run)
            except Killed:
                return
            except BaseException as error:
                self.errors[name] = error
            run.close()

        self.threads[name] = threading.Thread(target=body, name=f"group-{name}", daemon=True)
        self.threads[name].start()

    def kill(self, name: str) -> None:
        """Called by a member's own thread: it dies here."""
        self.hub.kill(self.memberships[name])
        self.endpoints[name].abort("killed")
        raise Killed

    def join(self, *names: str, timeout_s: float = 90.0) -> None:
        for name in names or list(self.threads):
            self.threads[name].join(timeout_s)
            assert not self.threads[name].is_alive(), f"{name} hangs"

    def close(self) -> None:
        self.hub.close()
        self.fabric.close()


def digest_of(model: nn.Module) -> str:
    from farstep.train.healing import state_digest

    return state_digest(dict(model.state_dict()))
