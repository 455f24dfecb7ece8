"""A run in one process: seats that train in lockstep, each in a thread, and members that join them.

The gradient of a step is a function of its number, so that no collective is needed and the undisturbed run can be
computed beside it.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from farstep.testing.memory_engine import MemoryFabric
from farstep.train.healing import Healing, HealingSettings, state_digest

QUICK = HealingSettings(
    chunk_bytes=16 << 10,
    silence_s=10.0,
    linger_s=0.5,
    reconnect_s=0.05,
    ping_interval_s=0.05,
    hedge_s=0.1,
    follow_slowdown=None,
)
WAIT_S = 60.0
"""Longest wait for something that takes a fraction of a second on a machine with nothing else to do."""


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Waits for something that other threads bring about."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.005)


class ToyAdapter:
    """A model with AdamW and a scheduler, whose state follows from the gradients applied to it alone.

    Args:
        numel: of the largest parameter.
    """

    def __init__(self, numel: int = 40_000) -> None:
        torch.manual_seed(1)
        self.parameters = [torch.nn.Parameter(torch.randn(numel)), torch.nn.Parameter(torch.randn(7, 3))]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.9)
        self.committed = 0
        self.user: dict[Any, Any] = {"seen": []}

    def capture(self) -> dict[str, Any]:
        return {
            "model": [parameter.detach() for parameter in self.parameters],
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "user": self.user,
            "step": self.committed,
        }

    def restore(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, state["model"], strict=True):
                parameter.copy_(value)
        # The optimizer keeps what it is given if type and device fit.
        self.optimizer.load_state_dict(_copied(state["optimizer"]))
        self.scheduler.load_state_dict(state["scheduler"])
        self.user = state["user"]
        self.committed = state["step"]

    def apply_reduced(self, flats: Sequence[Tensor], meta: Mapping[str, Any]) -> None:
        assert meta["step"] == self.committed
        for parameter, flat in zip(self.parameters, flats, strict=True):
            parameter.grad = flat.clone().view_as(parameter)
        self.optimizer.step()
        self.scheduler.step()
        self.user["seen"] = [*self.user["seen"][-5:], meta["note"]]
        self.committed += 1

    def gradient(self, step: int) -> tuple[list[Tensor], dict[str, Any]]:
        generator = torch.Generator().manual_seed(step)
        flats = [torch.randn(parameter.numel(), generator=generator) for parameter in self.parameters]
        return flats, {"step": step, "note": f"batch {step}", "samples": [step, step + 1]}

    def digest(self) -> str:
        return state_digest(self.capture())


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def digest_after(num_steps: int, numel: int = 40_000) -> str:
    """The state of an undisturbed run."""
    adapter = ToyAdapter(numel)
    for step in range(num_steps):
        adapter.apply_reduced(*adapter.gradient(step))
    return adapter.digest()


@dataclass(frozen=True)
class Who:
    member_id: str


@dataclass(frozen=True)
class FakeGeneration:
    seats: tuple[Who, ...]
    spares: tuple[Who, ...] = ()


@dataclass
class Hub:
    """Members of one process; messages travel at once."""

    generation: FakeGeneration | None = None
    members: dict[str, "FakeMembership"] = field(default_factory=dict)

    def join(self, name: str) -> "FakeMembership":
        self.members[name] = FakeMembership(self, Who(name))
        return self.members[name]


class FakeMembership:
    def __init__(self, hub: Hub, member: Who) -> None:
        self.member = member
        self.ready: list[int] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._hub = hub
        self._callbacks: list[Callable[[str, dict[str, Any]], None]] = []

    def current(self) -> FakeGeneration | None:
        return self._hub.generation

    def request(self, to: str, payload: dict[str, Any]) -> None:
        target = self._hub.members.get(to)
        for callback in target._callbacks if target is not None else []:
            callback(self.member.member_id, payload)

    def on_request(self, callback: Callable[[str, dict[str, Any]], None]) -> None:
        self._callbacks.append(callback)

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def announce_ready(self, step: int) -> None:
        self.ready.append(step)

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


class Seat:
    """A member that trains."""

    def __init__(self, fleet: "Fleet", name: str, settings: HealingSettings) -> None:
        self.name = name
        self.endpoint = fleet.endpoint(name)
        self.membership = fleet.hub.join(name)
        self.adapter = ToyAdapter(fleet.numel)
        self.healing = Healing(
            membership=self.membership,
            endpoint=self.endpoint,
            adapter=self.adapter,
            run_id="toy",
            settings=settings,
        )

    def step(self) -> None:
        flats, meta = self.adapter.gradient(self.adapter.committed)
        self.healing.on_committed(flats, meta)
        self.adapter.apply_reduced(flats, meta)
        self.healing.at_boundary(self.adapter.committed)


class Fleet:
    """Seats in lockstep; use as a context manager.

    Args:
        num_seats: how many.
        numel: size of the toy's largest parameter.
        step_s: pause after every step.
        settings: of all members.
        make_endpoint: another transport than the one inside the process.
    """

    def __init__(
        self,
        num_seats: int = 2,
        *,
        numel: int = 40_000,
        step_s: float = 0.005,
        settings: HealingSettings = QUICK,
        make_endpoint: Callable[[str], Any] | None = None,
    ) -> None:
        self.fabric = MemoryFabric()
        self.hub = Hub()
        self.numel = numel
        self.settings = settings
        self._step_s = step_s
        self._make_endpoint = make_endpoint
        self._endpoints: list[Any] = []
        self.seats = [Seat(self, f"a-{i}", settings) for i in range(num_seats)]
        self.joiners: list[Joiner] = []
        self.error: BaseException | None = None
        self._pause = threading.Lock()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._train, daemon=True)]
        self.seat_everybody()

    def endpoint(self, name: str) -> Any:
        endpoint = self._make_endpoint(name) if self._make_endpoint else self.fabric.endpoint(name)
        self._endpoints.append(endpoint)
        return endpoint

    def seat_everybody(self, spares: Sequence[str] = ()) -> None:
        """Makes a generation of all seats that are left."""
        self.hub.generation = FakeGeneration(
            tuple(seat.membership.member for seat in self.seats), tuple(Who(name) for name in spares)
        )
        for number, seat in enumerate(self.seats):
            seat.healing.on_generation(self.hub.generation, number)

    @property
    def committed(self) -> int:
        return self.seats[0].adapter.committed

    def _train(self) -> None:
        try:
            while not self._over.is_set():
                with self._pause:
                    for seat in list(self.seats):
                        seat.step()
                self._over.wait(self._step_s)
        except BaseException as error:
            self.error = error

    def kill(self, number: int) -> Seat:
        """Ends a seat without a word: nothing of it answers any more."""
        seat = self.seats[number]
        with self._pause:
            self.seats.remove(seat)
        seat.endpoint.abort("killed")
        seat.endpoint.close()
        seat.endpoint.create_connection = _no_connection
        return seat

    def paused(self) -> threading.Lock:
        """A context in which no seat begins a step."""
        return self._pause

    def join(self, name: str = "b-0", settings: HealingSettings | None = None) -> "Joiner":
        joiner = Joiner(self, name, settings or self.settings)
        self.joiners.append(joiner)
        return joiner

    def __enter__(self) -> "Fleet":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        for joiner in self.joiners:
            joiner.stop()
        for seat in self.seats:
            seat.healing.close()
        for endpoint in self._endpoints:
            endpoint.close()
        self.fabric.close()
        if self.error is not None:
            raise self.error


def caught_up(fleet: Fleet, joiner: "Joiner") -> None:
    """Checks that a follower arrives at exactly the state of the seats, however far behind it is just now."""
    end_s = time.monotonic() + WAIT_S
    while not _has_arrived(fleet, joiner):
        assert time.monotonic() < end_s, "loses touch again and again"
        wait_until(lambda: joiner.healing.has_state)


def _has_arrived(fleet: Fleet, joiner: "Joiner") -> bool:
    """Lets a follower come to where the seats are, while they pause.

    One that has lost touch with the run cannot: it needs a boundary to come.
    """
    with fleet.paused():
        target = fleet.committed
        wait_until(lambda: joiner.adapter.committed == target or not joiner.healing.has_state)
        if joiner.adapter.committed != target:
            return False
        assert joiner.adapter.digest() == fleet.seats[0].adapter.digest()
        assert joiner.adapter.digest() == digest_after(target, fleet.numel)
        return True


def _no_connection(**_: Any) -> Any:
    from farstep.engine import EndpointClosed

    raise EndpointClosed("killed")


class Joiner:
    """A member without a seat, following in a thread of its own."""

    def __init__(self, fleet: Fleet, name: str, settings: HealingSettings) -> None:
        self.membership = fleet.hub.join(name)
        self.adapter = ToyAdapter(fleet.numel)
        self.endpoint = fleet.endpoint(name)
        self.healing = Healing(
            membership=self.membership,
            endpoint=self.endpoint,
            adapter=self.adapter,
            run_id="toy",
            settings=settings,
        )
        self.error: BaseException | None = None
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"follow-{name}", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            self.healing.follow(self._is_done.is_set)
        except BaseException as error:
            self.error = error

    @property
    def is_ready(self) -> bool:
        if self.error is not None:
            raise self.error
        return bool(self.membership.ready)

    def wait_ready(self) -> None:
        wait_until(lambda: self.is_ready)

    def finish(self) -> None:
        """Ends following, as on promotion."""
        self._is_done.set()
        self.healing.wake()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        self.finish()
        self.healing.close()
