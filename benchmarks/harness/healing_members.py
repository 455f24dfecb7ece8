"""Members of a small training job in processes of their own: seats that train in lockstep, and one that joins.

The gradient of a step is a function of its number, so that a step costs its all-reduce, its optimizer and a wait in
place of an accelerator's work, and nothing else that could blur what healing adds.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from farstep.collectives import Communicator
from farstep.collectives.vector import allocate_pages
from farstep.engine import Endpoint, EngineError, PortConfig
from farstep.train.healing import Healing, HealingSettings, state_digest
from farstep.train.healing.letters import LetterStore

BURN_PERIOD_S = 0.02
BURN_S = 4.0


@dataclass(frozen=True)
class Who:
    """A member."""

    member_id: str


@dataclass(frozen=True)
class Seats:
    """A generation."""

    number: int
    seats: tuple[Who, ...]
    spares: tuple[Who, ...] = ()


class PipeMembership:
    """Membership of one process; the parent passes messages on and says who has a seat."""

    def __init__(self, name: str, pipe: Connection) -> None:
        self.member = Who(name)
        self._pipe = pipe
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._generation: Seats | None = None
        self._callbacks: list[Any] = []
        self._values = LetterStore(lambda key, value: self.send("value", key, value))
        self.orders: list[Any] = []
        self.communicator: Communicator | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, *words: Any) -> None:
        """Sends to the parent."""
        with self._lock:
            self._pipe.send(words)

    def _listen(self) -> None:
        while True:
            try:
                kind, *words = self._pipe.recv()
            except (EOFError, OSError):
                return
            with self._changed:
                if kind == "seats":
                    self._generation = words[0]
                    if self.communicator is not None:
                        self.communicator.abort("somebody is gone")
                elif kind == "order":
                    self.orders.append(words[0])
                self._changed.notify_all()
            if kind == "value":
                self._values.deliver(*words)
            elif kind == "letter":
                for callback in self._callbacks:
                    callback(*words)

    def wait_generation(self, after: int) -> Seats:
        """Waits for a later generation."""
        with self._changed:
            self._changed.wait_for(lambda: self._generation is not None and self._generation.number > after)
            assert self._generation is not None
            return self._generation

    def store(self) -> LetterStore:
        """Where communicators find each other."""
        return self._values

    def current(self) -> Seats | None:
        """The newest generation."""
        return self._generation

    def request(self, to: str, payload: Mapping[str, Any]) -> None:
        """Sends a letter to a member."""
        self.send("letter", to, dict(payload))

    def on_request(self, callback: Any) -> None:
        """Has a callback called with every letter."""
        self._callbacks.append(callback)

    def event(self, kind: str, **fields: Any) -> None:
        """Reports an event, with the processor time this process has used until then."""
        self.send("event", kind, time.monotonic(), {**fields, "cpu_s": time.process_time()})

    def announce_ready(self, step: int | None) -> None:
        """Reports that the state is complete."""
        self.send("ready", step, time.monotonic())


class Model:
    """One flat parameter with AdamW: its state is three times the gradient."""

    def __init__(self, numel: int) -> None:
        torch.set_num_threads(1)
        self.parameter = torch.nn.Parameter(torch.linspace(-1, 1, numel))
        self.optimizer = torch.optim.AdamW([self.parameter], lr=1e-3, fused=True)
        self.committed = 0

    def capture(self) -> dict[str, Any]:
        """The state."""
        return {
            "model": self.parameter.detach(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.committed,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replaces the state."""
        with torch.no_grad():
            self.parameter.copy_(state["model"])
        values = state["optimizer"]["state"]
        copied = {index: {k: v.clone() for k, v in item.items()} for index, item in values.items()}
        self.optimizer.load_state_dict({**state["optimizer"], "state": copied})
        self.committed = state["step"]

    def apply_reduced(self, flats: Sequence[Tensor], meta: Mapping[str, Any]) -> None:
        """Makes a step."""
        self.parameter.grad = flats[0]
        self.optimizer.step()
        self.committed += 1


def gradient_of(step: int, flat: Tensor) -> None:
    """Fills in the gradient of a step."""
    flat.fill_(math.sin(step + 1.0))
    flat[:1000] = torch.arange(1000.0) * math.cos(step)


def busy(duration_s: float) -> None:
    """Keeps a core busy, as a model on the processor does."""
    a = torch.ones(128, 128)
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        a = (a @ a).clamp_(-1, 1)


def seat(
    name: str,
    pipe: Connection,
    numel: int,
    compute_s: float,
    is_busy: bool,
    settings: HealingSettings,
    core: int | None,
) -> None:
    """Trains until it is told after which step to stop, reporting every step."""
    use_core(core)
    membership = PipeMembership(name, pipe)
    endpoint = Endpoint([PortConfig()], name=name)
    model = Model(numel)
    healing = Healing(
        membership=membership, endpoint=endpoint, adapter=model, run_id="bench", settings=settings
    )
    flat = torch.from_numpy(allocate_pages(4 * numel).view("float32")[:numel])
    number = 0
    began_s = time.monotonic()
    while not membership.orders or model.committed < membership.orders[0]:
        try:
            communicator = membership.communicator
            if communicator is None:
                generation = membership.wait_generation(number)
                number = generation.number
                communicator = membership.communicator = join(endpoint, membership, generation)
                align(communicator, model, flat, healing)
                healing.on_generation(generation, 0)
            (busy if is_busy else time.sleep)(compute_s)
            gradient_of(model.committed, flat)
            communicator.all_reduce(flat.numpy(), "max")
        except EngineError:
            communicator, membership.communicator = membership.communicator, None
            if communicator is not None:
                communicator.close()
            continue
        commit(model, flat, healing)
        now_s = time.monotonic()
        figures = (model.committed, began_s, now_s, healing.served.chunks, healing.copy_s, healing.rate_mbps)
        membership.send("step", *figures)
        began_s = now_s
    membership.send("end", state_digest(model.capture()), model.committed)
    with healing.standstill():
        while len(membership.orders) < 2:  # the newcomer may not have all steps yet
            time.sleep(0.01)
    healing.close()
    endpoint.close()


def commit(model: Model, flat: Tensor, healing: Healing) -> None:
    """Makes a step from its reduced gradient."""
    meta = {"step": model.committed}
    healing.on_committed([flat], meta)
    model.apply_reduced([flat], meta)
    healing.at_boundary(model.committed)


def join(endpoint: Endpoint, membership: PipeMembership, generation: Seats) -> Communicator:
    """The communicator of a generation."""
    rank = generation.seats.index(membership.member)
    store = membership.store()
    return Communicator(
        endpoint, rank=rank, size=len(generation.seats), store=store, name=f"g{generation.number}"
    )


def align(communicator: Communicator, model: Model, flat: Tensor, healing: Healing) -> None:
    """Brings all seats to the same step: a step that one has committed had been reduced, and is made by all."""
    newest = torch.tensor([model.committed])
    communicator.all_reduce(newest.numpy(), "max")
    while model.committed < int(newest):
        gradient_of(model.committed, flat)
        commit(model, flat, healing)


def use_core(core: int | None) -> None:
    """Keeps this process on one processor core; None: wherever there is room."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def burn(share: float, duration_s: float) -> None:
    """Uses a share of one core, moving memory as one does that receives a state, and sends and receives nothing."""
    source = torch.ones(1 << 20)
    target = torch.empty_like(source)
    end_s = time.monotonic() + duration_s
    while (now_s := time.monotonic()) < end_s:
        used_s = time.process_time()
        while time.process_time() - used_s < share * BURN_PERIOD_S:
            target.copy_(source)
        time.sleep(max(0.0, now_s + BURN_PERIOD_S - time.monotonic()))


def newcomer(name: str, pipe: Connection, numel: int, settings: HealingSettings, core: int | None) -> None:
    """Waits for the order to heal, then follows until told to stop; ordered to burn, it does that and ends."""
    use_core(core)
    membership = PipeMembership(name, pipe)
    model = Model(numel)
    endpoint = Endpoint([PortConfig()], name=name)
    healing = Healing(
        membership=membership, endpoint=endpoint, adapter=model, run_id="bench", settings=settings
    )
    membership.send("up")
    while not membership.orders:
        time.sleep(0.01)
    if isinstance(membership.orders[0], float):
        burn(membership.orders[0], BURN_S)
        membership.send("end")
        return
    healing.follow(lambda: len(membership.orders) > 1)
    target = membership.orders[1]
    if target is not None and not healing.catch_up(target, timeout_s=60):
        healing.catch_up(target, timeout_s=60)  # one that dozes says first that it needs the whole state
    pulled = healing.last_pull
    assert pulled is not None
    figures = (pulled.length_bytes, pulled.duration_s, pulled.num_fetched, dict(pulled.chunks_by_source))
    membership.send("end", state_digest(model.capture()), model.committed, *figures)
    healing.close()
    endpoint.close()


class Job:
    """The parent: starts members, passes their letters on, and notes what they report.

    Args:
        num_seats: members that train.
        numel: of the parameter.
        compute_s: of a step, besides all-reduce and optimizer.
        is_busy: whether that time is spent computing, or waiting as for an accelerator.
        settings: of healing.
        is_apart: whether the newcomer has a core that no seat uses; all seats share another one.
    """

    def __init__(
        self,
        num_seats: int,
        numel: int,
        compute_s: float,
        is_busy: bool,
        settings: HealingSettings,
        is_apart: bool = False,
    ) -> None:
        Model(8).apply_reduced(
            [torch.zeros(8)], {}
        )  # what torch loads at the first step, loaded once for all
        context = multiprocessing.get_context("fork")
        self.pipes: dict[str, Connection] = {}
        self.processes: dict[str, Any] = {}
        self.steps: list[tuple[int, float, float, int, float, float]] = []
        self.chunks: dict[str, int] = {}
        self.events: list[tuple[str, float, dict[str, Any]]] = []
        self.ready_s: float | None = None
        self.ends: dict[str, tuple[Any, ...]] = {}
        self.is_up = False
        self._number = 0
        self.names = [f"a-{i}" for i in range(num_seats)]
        cores = sorted(os.sched_getaffinity(0)) if is_apart else [None, None]
        of_seats = (numel, compute_s, is_busy, settings, cores[0])
        arguments: dict[str, Any] = dict.fromkeys(self.names, (seat, of_seats))
        arguments["late"] = (newcomer, (numel, settings, cores[1]))
        for name, (target, more) in arguments.items():
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(name, theirs, *more), daemon=True)
            process.start()
            theirs.close()
            self.pipes[name], self.processes[name] = ours, process
        self.seat(self.names)

    def seat(self, names: Sequence[str]) -> None:
        """Tells everybody who has a seat."""
        self._number += 1
        self.tell("seats", Seats(self._number, tuple(Who(name) for name in names)))

    def tell(self, *words: Any, to: Sequence[str] = ()) -> None:
        """Sends to some members, or to all."""
        for name in to or list(self.pipes):
            try:
                self.pipes[name].send(words)
            except (BrokenPipeError, OSError):
                self.pipes.pop(name, None)

    def kill(self, name: str) -> None:
        """Kills a member as a machine dies, and seats the others."""
        self.processes[name].kill()
        self.processes[name].join()
        self.pipes.pop(name).close()
        self.names.remove(name)
        self.seat(self.names)

    def run_until(self, is_done: Any, timeout_s: float) -> None:
        """Passes letters on until something has happened."""
        end_s = time.monotonic() + timeout_s
        while not is_done():
            if time.monotonic() > end_s:
                raise TimeoutError(f"the job did not get so far within {timeout_s:g} s")
            for pipe in wait(list(self.pipes.values()), 0.05):
                self._take(pipe)

    def _take(self, pipe: Any) -> None:
        name = next(name for name, other in self.pipes.items() if other is pipe)
        try:
            kind, *words = pipe.recv()
        except (EOFError, OSError):
            self.pipes.pop(name)
            return
        if kind == "letter":
            to, payload = words
            if to in self.pipes:
                self.tell("letter", name, payload, to=[to])
        elif kind == "value":
            self.tell("value", *words)
        elif kind == "step":
            self.chunks[name] = words[3]
            if name == self.names[0]:
                self.steps.append(tuple(words))
        elif kind == "event":
            self.events.append(tuple(words))
        elif kind == "ready":
            self.ready_s = words[1] if words[0] is not None else None
        elif kind == "up":
            self.is_up = True
        elif kind == "end":
            self.ends[name] = tuple(words)

    def close(self) -> None:
        """Ends all members."""
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
            process.join()
