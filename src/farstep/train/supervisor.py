"""Watches over one run: keeps its event log, its emulated network and the line to every rank.

All of it happens in one thread that takes messages from one inbox, so there is nothing to lock. The
supervisor is not on the path of a healthy step. It knows neither torch nor how ranks are started:
`farstep.train.launcher` starts them here, torchrun elsewhere.
"""

import contextlib
import math
import platform
import queue
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from farstep.observe.events import (
    EVENT_KINDS,
    Event,
    EventLog,
    EventLogError,
    FaultEvent,
    Record,
    RunEnd,
    RunStart,
)
from farstep.train.config import RunConfig
from farstep.train.config_file import dump_toml
from farstep.train.control import ControlServer, Message, Severity
from farstep.train.data import Corpus
from farstep.train.emulation import Emulation
from farstep.train.errors import ConfigError
from farstep.train.result import RunResult, odd_replicas

__all__ = ["RankProcesses", "Supervisor"]

POLL_S = 0.1
"""How often processes are looked at when no message comes."""

START_TIMEOUT_S = 180.0
"""All ranks must be ready by then; loading torch four times on a busy machine takes some twenty seconds."""

CAUSE_WINDOW_S = 0.5
"""After a first failure, so long others may come in: a dead rank and what its peers make of it race."""

ABORT_TIMEOUT_S = 5.0
"""Ranks that were told to give up and still run after this long are ended by force."""

STOP_TIMEOUT_S = 30.0
"""Ranks that were asked to stop after the current step and still run after this long are told to give up."""


class RankProcesses(Protocol):
    """The processes of the ranks, where the supervisor has started them."""

    def exits(self) -> dict[int, str]:
        """Returns how each rank that is gone has ended, such as `was killed by SIGKILL`."""

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
    ) -> None:
        self._config = config
        self._corpus = corpus
        self._folder = folder
        self._log = self._open_records(listeners)
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._emulation = Emulation(config, on_fault=self._queue_fault)
        self._control = ControlServer(self.inbox, host=host)
        self._processes: RankProcesses | None = None
        self._ready: dict[int, dict[str, Any]] = {}
        self._done: dict[int, dict[str, Any]] = {}
        self._told: set[int] = set()
        """Ranks that said how they ended; that their process then ends is no news."""
        self._gone: set[int] = set()
        self._failures: list[tuple[Severity, str]] = []
        """Severity and wording; the most severe is the cause, the others follow from it."""
        self._step = 0
        self._is_stopping = False
        self._is_giving_up = False
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
            while not self._is_over():
                with contextlib.suppress(queue.Empty):
                    self._handle(self.inbox.get(timeout=POLL_S))
                self._look_at_processes()
                self._look_at_clock()
            return self._finish()
        finally:
            if processes is not None:
                processes.terminate()
            self._control.close()
            self._emulation.close()
            self._log.close()

    def request_stop(self) -> None:
        """Asks all ranks to stop after the current step; a second time tells them to give up.

        Safe in a signal handler.
        """
        self.inbox.put(Message("stop", None, {}))

    # ---- what comes in ----

    def _handle(self, message: Message) -> None:
        rank, fields = message.rank, message.fields
        match message.kind:
            case "ports" if rank is not None:
                self._control.send(rank, "addresses", public=self._emulation.expose(rank, fields["ports"]))
            case "ready" if rank is not None:
                self._on_ready(rank, fields)
            case "step_begin":
                self._step = fields["step"]
                self._emulation.reach_step(self._step)
            case "event":
                self._emit(fields, rank)
            case "done" if rank is not None:
                self._told.add(rank)
                self._done[rank] = fields
            case "failed" if rank is not None:
                self._told.add(rank)
                self._fail(Severity(fields["severity"]), f"rank {rank}: {fields['message']}")
            case "lost" if rank is not None:
                self._on_lost(rank)
            case "fault":
                event = FaultEvent.model_validate({**fields["event"], "step": self._step})
                self._log.emit(event, at_ns=fields["at_ns"])
            case "stop":
                self._on_stop()
            case _:
                pass

    def _on_ready(self, rank: int, fields: dict[str, Any]) -> None:
        self._ready[rank] = fields
        if len(self._ready) < self._config.num_ranks:
            return
        self._deadlines.pop("start", None)
        differing = odd_replicas({str(other): said["state_hash"] for other, said in self._ready.items()})
        if differing:
            self._fail(
                Severity.SEEN, f"ranks {', '.join(differing)} would begin from other parameters than the rest"
            )
            return
        self._log.emit(self._run_start(fields))
        self._emulation.start()
        self._control.broadcast("go")

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
            tokens_per_step=config.num_ranks * config.data.batch_per_group * config.model.context_bytes,
            text_name=self._corpus.name,
            text_bytes=self._corpus.length_bytes,
            text_sha256=self._corpus.sha256,
        )

    def _emit(self, fields: dict[str, Any], rank: int | None) -> None:
        model: type[Event] = EVENT_KINDS[fields["event"]]
        whose = None if fields["is_shared"] else rank
        self._log.emit(model.model_validate(fields["fields"]), rank=whose, at_ns=fields["at_ns"])

    def _queue_fault(self, event: dict[str, Any], at_ns: int) -> None:
        """Brings a fault from the emulator's thread into ours."""
        self.inbox.put(Message("fault", None, {"event": event, "at_ns": at_ns}))

    # ---- what goes wrong ----

    def _on_lost(self, rank: int) -> None:
        self._gone.add(rank)
        if rank not in self._told:
            self._fail(Severity.BROKEN, f"rank {rank} ended without a word")

    def _on_stop(self) -> None:
        if self._is_stopping or len(self._ready) < self._config.num_ranks:
            self._fail(Severity.WANTED, "stopped by the user")
            return
        self._is_stopping = True
        self._control.broadcast("stop")
        self._deadlines["stop"] = time.monotonic() + STOP_TIMEOUT_S

    def _fail(self, severity: Severity, wording: str) -> None:
        if self._is_giving_up:
            return  # what happens now follows from that
        self._failures.append((severity, wording))
        wait_s = 0.0 if severity >= Severity.SEEN else CAUSE_WINDOW_S
        self._deadlines["cause"] = min(self._deadlines.get("cause", math.inf), time.monotonic() + wait_s)

    def _look_at_processes(self) -> None:
        if self._emulation.has_died:
            self._fail(Severity.SEEN, "the path emulator ended unexpectedly")
        if self._processes is None:
            return
        for rank, how in self._processes.exits().items():
            self._gone.add(rank)
            if rank not in self._told:
                self._told.add(rank)
                self._fail(Severity.SEEN, f"rank {rank} {how}")

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        due = [name for name, deadline in self._deadlines.items() if deadline <= now]
        for name in due:
            del self._deadlines[name]
        if "start" in due:
            missing = sorted(set(range(self._config.num_ranks)) - set(self._ready))
            self._fail(
                Severity.SEEN,
                f"ranks {', '.join(map(str, missing))} were not ready within {START_TIMEOUT_S:g} s",
            )
        if "stop" in due:
            self._fail(Severity.SEEN, f"the ranks did not stop within {STOP_TIMEOUT_S:g} s")
        if "cause" in due:
            self._is_giving_up = True
            self._control.broadcast("abort", also_later=True, reason=self._cause())
            # Ranks that still load torch have nothing to finish, and would not hear of it for a while.
            is_starting = self._processes is not None and self._control.num_connected < self._config.num_ranks
            self._deadlines["abort"] = now + (0.0 if is_starting and not self._ready else ABORT_TIMEOUT_S)
        if "abort" in due:
            self._gone = set(range(self._config.num_ranks))

    def _cause(self) -> str | None:
        if not self._failures:
            return None
        severity = max(severity for severity, _ in self._failures)
        return next(wording for level, wording in self._failures if level == severity)

    # ---- the end ----

    def _is_over(self) -> bool:
        if self._failures and "cause" in self._deadlines:
            return False
        return len(self._gone) >= self._config.num_ranks

    def _finish(self) -> RunResult:
        hashes = {self._name(rank): said["state_hash"] for rank, said in sorted(self._done.items())}
        said = self._done.get(0, {})
        reason = self._cause()
        status = "failed"
        if reason == "stopped by the user":
            status = "interrupted"
        elif reason is None:
            odd = odd_replicas(hashes)
            if odd:
                reason = f"replicas {', '.join(odd)} hold other bits than the rest"
            elif said["is_interrupted"]:
                status, reason = "interrupted", "stopped by the user"
            else:
                status = "finished"
        end = {
            "status": status,
            "reason": reason,
            "steps": said.get("steps", self._step),
            "final_loss": said.get("final_loss"),
            "held_out_loss": said.get("held_out_loss"),
            "replica_hashes": hashes,
        }
        self._log.emit(RunEnd.model_validate(end))
        failure = self._log.failure
        log_failure = None if failure is None else failure.strerror or str(failure)
        return RunResult(folder=self._folder, log_failure=log_failure, **end)

    def _name(self, rank: int) -> str:
        sites = self._config.site_of_rank
        return f"{sites[rank]}/{sites[:rank].count(sites[rank])}"
