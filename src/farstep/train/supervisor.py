"""Watches over one run: keeps its event log, its emulated network, its coordinator and the line to every rank.

All of it happens in one thread that takes messages from one inbox, so there is nothing to lock. The
supervisor is not on the path of a healthy step: who trains with whom is the business of the ranks and the
coordinator. It knows neither torch nor how ranks are started: `farstep.train.launcher` starts them here,
torchrun elsewhere.
"""

import contextlib
import platform
import queue
import time
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from farstep.observe.events import (
    EVENT_KINDS,
    Eval,
    Event,
    EventLog,
    EventLogError,
    FaultEvent,
    MembersChanged,
    RankLost,
    Record,
    RunEnd,
    RunStart,
    Step,
)
from farstep.train.config import RunConfig
from farstep.train.config_file import dump_toml
from farstep.train.control import ControlServer, Message
from farstep.train.coordination import RunCoordinator
from farstep.train.data import Corpus
from farstep.train.emulation import Emulation
from farstep.train.errors import ConfigError, RunFailed
from farstep.train.held_out import HeldOutLosses
from farstep.train.result import RunResult, odd_replicas

__all__ = ["RankProcesses", "Supervisor"]

POLL_S = 0.1
"""How often processes are looked at when no message comes."""

START_TIMEOUT_S = 180.0
"""All ranks must be ready by then; loading torch four times on a busy machine takes some twenty seconds."""

QUORUM_S = 3.0
"""The members decide about a loss within a second, unless too many are gone at once to decide anything. Then it is told
to them that those have exited."""

ABORT_TIMEOUT_S = 5.0
"""Ranks that were told to give up and still run after this long are ended by force."""

STOP_TIMEOUT_S = 30.0
"""Ranks that were asked to stop after the current step and still run after this long are told to give up."""

STOPPED = "stopped by the user"


class RankProcesses(Protocol):
    """The processes of the ranks, where the supervisor has started them."""

    def exits(self) -> dict[int, str]:
        """Returns how each rank that is gone has ended, such as `was killed by SIGKILL`."""

    def failure(self) -> str | None:
        """Returns why nothing is known of the ranks any more, if so."""

    def terminate(self) -> None:
        """Ends all that still run, by force if need be."""


class Supervisor:
    """Watches over one run.

    Args:
        config: the run.
        corpus: its text, for the record.
        folder: existing folder for the event log and the configuration.
        listeners: are called with every record of the event log.
        host: address to listen on for the ranks.
        coordinators: addresses of a coordinator that is there already; without any, one is started.

    Raises:
        ConfigError: the folder cannot be written to.
        RunFailed: the path emulator could not be started.
    """

    def __init__(
        self,
        config: RunConfig,
        corpus: Corpus,
        folder: Path,
        *,
        listeners: Iterable[Callable[[Record], None]] = (),
        host: str = "127.0.0.1",
        coordinators: Collection[str] = (),
    ) -> None:
        self._config = config
        self._corpus = corpus
        self._folder = folder
        self._log = self._open_records(listeners)
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._emulation = Emulation(config, on_fault=self._queue_fault)
        self._control = ControlServer(self.inbox, host=host)
        self._coordinator = None if coordinators else RunCoordinator(folder / "coordinator", config)
        self._addresses = list(coordinators) or [self._coordinator.address if self._coordinator else ""]
        self._processes: RankProcesses | None = None
        self._loaded: set[int] = set()
        self._ready: dict[int, dict[str, Any]] = {}
        self._done: dict[int, dict[str, Any]] = {}
        self._lost: dict[int, str] = {}
        """Ranks that the run goes on without, and how they ended."""
        self._gone: set[int] = set()
        """Ranks whose process has ended."""
        self._members: Collection[str] = config.group_names
        self._early: list[tuple[str, int | None, int, dict[str, Any]]] = []
        """What ranks told before the run began."""
        self._held_out = HeldOutLosses(config.num_ranks)
        self._held_out_loss: float | None = None
        self._step = 0
        self._told_steps = -1
        self._reason: str | None = None
        """Why the run does not go on."""
        self._is_stopping = False
        self._deadlines: dict[str, float] = {"start": time.monotonic() + START_TIMEOUT_S}

    def _open_records(self, listeners: Iterable[Callable[[Record], None]]) -> EventLog:
        try:
            (self._folder / "config.toml").write_text(dump_toml(self._config), encoding="utf-8")
            return EventLog(self._folder / "events.jsonl", listeners=listeners)
        except (OSError, EventLogError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ConfigError(f"run.out: {self._folder} cannot be written to: {why}") from error

    @property
    def address(self) -> tuple[str, int]:
        """Where the ranks report."""
        return self._control.address

    @property
    def token(self) -> str:
        """What the ranks identify themselves with."""
        return self._control.token

    def run(self, processes: RankProcesses | None = None) -> RunResult:
        """Serves the ranks until all are gone.

        Args:
            processes: the ranks' processes, if they are this process's children.

        Returns:
            How the run ended; failures are reported, not raised.
        """
        self._processes = processes
        try:
            self._start_coordinator()
            while len(self._gone) < self._config.num_ranks:
                # What a rank said last is in the inbox before its process ends.
                exits = {} if processes is None else processes.exits()
                self._take_messages()
                self._look_at_processes(exits)
                self._look_at_clock()
            return self._finish()
        finally:
            if processes is not None:
                processes.terminate()
            self._control.close()
            if self._coordinator is not None:
                self._coordinator.close()
            self._emulation.close()
            self._log.close()

    def request_stop(self) -> None:
        """Asks all ranks to stop after the current step; a second time tells them to give up.

        Safe in a signal handler.
        """
        self.inbox.put(Message("stop", None, {}))

    def _start_coordinator(self) -> None:
        if self._coordinator is not None:
            try:
                self._coordinator.start()
            except RunFailed as error:
                self._fail(str(error))

    # ---- what comes in ----

    def _take_messages(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._handle(self.inbox.get(timeout=POLL_S))
        for _ in range(self.inbox.qsize()):
            self._handle(self.inbox.get())

    def _handle(self, message: Message) -> None:
        rank, fields = message.rank, message.fields
        match message.kind:
            case "fault":
                event = FaultEvent.model_validate({**fields["event"], "step": self._step})
                self._log.emit(event, at_ns=fields["at_ns"])
            case "stop":
                self._on_stop()
            case _ if rank is not None:
                self._on_word(rank, message.kind, fields)

    def _on_word(self, rank: int, kind: str, fields: dict[str, Any]) -> None:
        """Takes what a rank says."""
        match kind:
            case "loaded":
                self._on_loaded(rank)
            case "ports":
                self._control.send(rank, "addresses", public=self._emulation.expose(rank, fields["ports"]))
            case "ready":
                self._on_ready(rank, fields)
            case "step_begin":
                if fields["step"] > self._step:
                    self._step = fields["step"]
                    self._emulation.reach_step(self._step)
            case "event":
                self._emit(fields["event"], rank, fields["at_ns"], fields["fields"])
            case "held_out":
                shares = {int(share): (total, count) for share, (total, count) in fields["shares"].items()}
                self._held_out.add(rank, fields["step"], shares)
                self._tell_held_out()
            case "done":
                self._done[rank] = fields
                self._tell_held_out()
            case "left":
                self._lose(rank, fields["how"])
            case "failed" if fields["is_of_run"]:
                self._fail(f"rank {rank}: {fields['message']}")
            case "failed":
                self._lose(rank, f"failed: {fields['message']}")
            case "lost" if self._processes is None:
                self._gone.add(rank)
                self._lose(rank, "ended without a word")
            case _:
                pass

    def _on_loaded(self, rank: int) -> None:
        """Lets the ranks join once all of them can: who comes late would otherwise be left out at the beginning."""
        self._loaded.add(rank)
        if len(self._loaded) == self._config.num_ranks:
            self._control.broadcast(
                "join", coordinators=self._addresses, is_own=self._coordinator is not None
            )

    def _on_ready(self, rank: int, fields: dict[str, Any]) -> None:
        self._ready[rank] = fields
        if len(self._ready) < self._config.num_ranks:
            return
        self._deadlines.pop("start", None)
        self._log.emit(self._run_start(fields))
        for kind, whose, at_ns, early in self._early:
            self._emit(kind, whose, at_ns, early)
        self._emulation.start()
        self._control.broadcast("go")

    @property
    def _has_begun(self) -> bool:
        return len(self._ready) == self._config.num_ranks

    @property
    def _living(self) -> list[int]:
        """Ranks that train, or will."""
        return [r for r in range(self._config.num_ranks) if r not in self._lost and r not in self._done]

    def _run_start(self, said: dict[str, Any]) -> RunStart:
        config = self._config
        sites: dict[str, list[int]] = {}
        for rank, site in enumerate(config.site_of_rank):
            sites.setdefault(site, []).append(rank)
        return RunStart(
            name="farstep train",
            config=config.model_dump(mode="json", exclude_none=True),
            versions={
                "farstep": version("farstep"),
                "torch": said["torch_version"],
                "python": platform.python_version(),
                "kernel": platform.release(),
            },
            ranks=config.num_ranks,
            replicas=config.num_ranks,
            sites=sites,
            steps_planned=config.run.steps,
            first_step=said.get("first_step", 0),
            parameters=said["num_parameters"],
            tokens_per_step=config.global_batch * config.model.context_bytes,
            text_name=self._corpus.name,
            text_bytes=self._corpus.length_bytes,
            text_sha256=self._corpus.sha256,
        )

    def _emit(self, kind: str, rank: int | None, at_ns: int, fields: dict[str, Any]) -> None:
        """Writes down what a rank tells."""
        if not self._has_begun:
            self._early.append((kind, rank, at_ns, fields))
            return
        event: Event = EVENT_KINDS[kind].model_validate(fields)
        if isinstance(event, Step):  # all ranks tell the same of it, and the first of them is heard
            if event.step <= self._told_steps:
                return
            self._told_steps, rank = event.step, None
        if isinstance(event, MembersChanged):
            self._members = event.groups
        self._log.emit(event, rank=rank, at_ns=at_ns)

    def _tell_held_out(self) -> None:
        for step, measured in self._held_out.take_complete(self._living):
            self._held_out_loss = measured.loss
            self._log.emit(Eval(step=step, loss=measured.loss, windows=measured.windows))

    def _queue_fault(self, event: dict[str, Any], at_ns: int) -> None:
        """Brings a fault from the emulator's thread into ours."""
        self.inbox.put(Message("fault", None, {"event": event, "at_ns": at_ns}))

    # ---- what goes wrong ----

    def _lose(self, rank: int, how: str) -> None:
        """Goes on without a rank, if that is possible."""
        if rank in self._lost or rank in self._done or self._reason is not None:
            return
        if not self._has_begun:
            self._fail(f"rank {rank} {how}")
            return
        self._lost[rank] = how
        group = self._config.group_names[rank]
        self._log.emit(RankLost(group=group, cause=how, step=self._step), rank=rank)
        self._tell_held_out()
        num_left = self._config.num_ranks - len(self._lost)
        if num_left == 0:
            self._fail(f"rank {rank} ({group}) {how}, and no replica group is left")
        elif num_left < self._config.run.min_groups and not self._done:
            left = "1 replica group is" if num_left == 1 else f"{num_left} replica groups are"
            self._fail(
                f"rank {rank} ({group}) {how}: {left} left, run.min_groups = {self._config.run.min_groups}"
            )
        else:
            self._deadlines["quorum"] = time.monotonic() + QUORUM_S

    def _see_to_quorum(self) -> None:
        """Tells the members that those they wait for have exited; their coordinator may have found out by itself."""
        names = {self._config.group_names[rank] for rank in self._lost if rank in self._gone}
        if self._coordinator is not None and self._processes is not None and names & set(self._members):
            self._coordinator.decide_without(names)
            self._deadlines["quorum"] = time.monotonic() + QUORUM_S

    def _on_stop(self) -> None:
        if self._is_stopping or not self._has_begun:
            self._fail(STOPPED)
            return
        self._is_stopping = True
        self._control.broadcast("stop")
        self._deadlines["stop"] = time.monotonic() + STOP_TIMEOUT_S

    def _fail(self, reason: str) -> None:
        """Ends the run; what happens after that follows from it."""
        if self._reason is None:
            self._reason = reason
            self._control.broadcast("abort", also_later=True, reason=reason)
            # Ranks that still load torch have nothing to finish, and would not hear of it for a while.
            is_loading = self._processes is not None and not self._loaded
            self._deadlines["abort"] = time.monotonic() + (0.0 if is_loading else ABORT_TIMEOUT_S)

    def _look_at_processes(self, exits: dict[int, str]) -> None:
        if self._emulation.has_died:
            self._fail("the path emulator ended unexpectedly")
        if self._coordinator is not None and self._reason is None:
            self._coordinator.keep()
        if self._processes is not None and (failure := self._processes.failure()):
            self._fail(failure)
        for rank, how in exits.items():
            self._gone.add(rank)
            self._lose(rank, how)

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        due = [name for name, deadline in self._deadlines.items() if deadline <= now]
        for name in due:
            del self._deadlines[name]
        if "start" in due:
            missing = sorted(set(range(self._config.num_ranks)) - set(self._ready))
            self._fail(f"ranks {', '.join(map(str, missing))} were not ready within {START_TIMEOUT_S:g} s")
        if "stop" in due:
            self._fail(f"the ranks did not stop within {STOP_TIMEOUT_S:g} s")
        if "quorum" in due:
            self._see_to_quorum()
        if "abort" in due:
            self._gone = set(range(self._config.num_ranks))

    # ---- the end ----

    def _finish(self) -> RunResult:
        steps = max((said["steps"] for said in self._done.values()), default=self._step)
        finishers = {rank: said for rank, said in sorted(self._done.items()) if said["steps"] == steps}
        for rank in self._done.keys() - finishers.keys():
            behind = RankLost(
                group=self._config.group_names[rank], cause="was not back at the end", step=steps
            )
            self._log.emit(behind, rank=rank)
        hashes = {self._config.group_names[rank]: said["state_hash"] for rank, said in finishers.items()}
        status, reason = self._verdict(finishers, hashes)
        end: dict[str, Any] = {
            "status": status,
            "reason": reason,
            "steps": steps,
            "final_loss": next((said["final_loss"] for said in finishers.values()), None),
            "held_out_loss": self._held_out_loss,
            "replica_hashes": hashes,
        }
        self._log.emit(RunEnd.model_validate(end))
        failure = self._log.failure
        log_failure = None if failure is None else failure.strerror or str(failure)
        return RunResult(folder=self._folder, log_failure=log_failure, **end)

    def _verdict(
        self, finishers: dict[int, dict[str, Any]], hashes: dict[str, str]
    ) -> tuple[str, str | None]:
        if self._reason is not None:
            return ("interrupted" if self._reason == STOPPED else "failed"), self._reason
        if odd := odd_replicas(hashes):
            return "failed", f"replicas {', '.join(odd)} hold other bits than the rest"
        if any(said["is_interrupted"] for said in finishers.values()):
            return "interrupted", STOPPED if self._is_stopping else "stopped by a signal to a rank"
        return "finished", None
