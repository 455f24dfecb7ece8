"""Starts a run: ranks as child processes of this one, or as torchrun has started them.

This process loads no torch; the nursery does, once, and forks the ranks. They are in a process group of
their own, so that Ctrl-C reaches this process alone, which then asks all ranks to stop after the same step.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

from farstep.fabric.errors import quoted
from farstep.fabric.expected import expect, expect_list, expect_path
from farstep.observe.events import Record
from farstep.train.config import RunConfig
from farstep.train.control import SUPERVISOR_GONE
from farstep.train.data import Corpus, load_corpus
from farstep.train.errors import ConfigError, RunFailed
from farstep.train.orders import Orders, TorchrunPlace
from farstep.train.result import RunResult
from farstep.train.supervisor import Supervisor

__all__ = ["CHECKPOINTS", "launch", "launch_under_torchrun", "make_folder"]

Listener = Callable[[Record], None]

TERMINATE_S = 2.0
"""Ranks get this long to end by themselves before they are killed."""

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints in that of a run."""

FOLDERS_MAX = 1000
"""Runs that may begin in one second in one folder."""


def launch(
    config: RunConfig,
    *,
    listeners: Iterable[Listener] = (),
    on_folder: Callable[[Path], None] = lambda folder: None,
    resume: Path | None = None,
) -> RunResult:
    """Runs all ranks as child processes and waits for the end.

    Args:
        config: the run.
        resume: folder of an earlier run, whose newest checkpoint is gone on from.
        listeners: are called with every record of the event log.
        on_folder: called with the folder of the run's records once it exists.

    Returns:
        How the run ended; Ctrl-C ends it after the current step.

    Raises:
        ConfigError: the text, the folder or the address to bind cannot be used.
        RunFailed: the path emulator could not be started.
    """
    expect("config", config, RunConfig, "a farstep.train.RunConfig")
    listeners = expect_list("listeners", listeners, "functions of a record")
    if not all(map(callable, [*listeners, on_folder])):
        raise ConfigError("listeners and on_folder must be functions")
    if resume is not None:
        expect_path("resume", resume)
    _check_bind_host(config.network.bind_host)
    corpus = _corpus(config)
    folder = make_folder(config.run.out)
    checkpoints = _checkpoints(config, folder, resume)
    on_folder(folder)
    supervisor = Supervisor(config, corpus, folder, listeners=listeners)
    ranks = _LocalRanks(
        config, supervisor, folder / "logs", checkpoints=checkpoints, resumes=resume is not None
    )
    with _stop_on_signal(supervisor), ranks:
        return supervisor.run(ranks)


def launch_under_torchrun(
    config: RunConfig,
    place: TorchrunPlace,
    *,
    listeners: Iterable[Listener] = (),
    on_folder: Callable[[Path], None] = lambda folder: None,
    resume: Path | None = None,
) -> tuple[RunResult | None, bool]:
    """Runs the one rank that this process is; rank 0 watches over the others as well.

    Args:
        config: the run, the same on every rank.
        place: this process's place in the group.
        listeners: are called with every record, on rank 0 alone.
        on_folder: called on rank 0 with the folder of the run's records once it exists.
        resume: folder of an earlier run, seen by every rank, whose newest checkpoint is gone on from.

    Returns:
        On rank 0 how the run ended, and whether this rank has finished; rank 0 tells why if not.

    Raises:
        ConfigError: the text, the folder or the address to bind cannot be used, or the group is of the wrong size.
        RunFailed: rank 0 is gone, or the path emulator could not be started.
    """
    place.check(config)
    _check_bind_host(config.network.bind_host)
    corpus = _corpus(config)
    from farstep.train.rendezvous import open_torchrun_store
    from farstep.train.worker import run_rank

    store = open_torchrun_store(place)
    supervisor: Supervisor | None = None
    if place.rank == 0:
        folder = make_folder(config.run.out)
        store.set("checkpoints", _checkpoints(config, folder, resume) or "")
        on_folder(folder)
        supervisor = Supervisor(
            config,
            corpus,
            folder,
            listeners=listeners,
            host=_reachable(place.master_host),
            coordinators=place.coordinators,
        )
        store.set("control", f"{place.master_host} {supervisor.address[1]} {supervisor.token}")
    host, port, token = store.get("control").decode().split()
    orders = Orders(
        rank=place.rank,
        config=config,
        control_address=(host, int(port)),
        token=token,
        checkpoints=store.get("checkpoints").decode() or None,
        resumes=resume is not None,
    )
    if supervisor is None:
        failure = run_rank(orders, is_own_process=False)
        if failure == SUPERVISOR_GONE:
            raise RunFailed(f"rank {place.rank}: {failure}")
        return None, failure is None
    results: list[RunResult] = []
    thread = threading.Thread(target=lambda: results.append(supervisor.run()), name="farstep-supervisor")
    thread.start()
    failure = run_rank(orders, is_own_process=False)
    thread.join()
    if not results:
        raise RunFailed("the supervisor failed")
    return results[0], failure is None


def make_folder(out: str) -> Path:
    """Makes a new folder for a run, named by the time, also if several runs begin at once.

    Raises:
        ConfigError: it cannot be made.
    """
    base = Path(out) / datetime.now().strftime("%Y%m%d-%H%M%S")
    for attempt in range(1, FOLDERS_MAX):
        folder = base if attempt == 1 else base.with_name(f"{base.name}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(
                f"run.out = {quoted(out)}: no folder can be made there: {error.strerror or error}"
            ) from error
        return folder
    raise ConfigError(f"run.out = {quoted(out)}: holds too many runs of this second")


def _checkpoints(config: RunConfig, folder: Path, resume: Path | None) -> str | None:
    """Returns where the checkpoints of a run are: in its folder, or in that of the run it goes on from.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    if not config.run.checkpoint_every_steps and resume is None:
        return None
    checkpoints = folder.resolve() / CHECKPOINTS
    if resume is not None:  # both folders then show all of them
        try:
            checkpoints.symlink_to(os.path.relpath((resume / CHECKPOINTS).resolve(), folder.resolve()))
        except OSError as error:
            raise ConfigError(f"run.out: {folder} cannot be written to: {error.strerror or error}") from error
    return str(checkpoints)


def _check_bind_host(host: str) -> None:
    """Checks that this machine has the address its ranks are to bind."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host can look like this
        why = (error.strerror if isinstance(error, OSError) else "") or "not the name of a host"
        raise ConfigError(
            f"network.bind_host = {quoted(host)}: must be an address of this machine ({why})"
        ) from error


def _corpus(config: RunConfig) -> Corpus:
    return load_corpus(
        config.data.text,
        held_out_fraction=config.data.held_out_fraction,
        context_bytes=config.model.context_bytes,
    )


def _reachable(master_host: str) -> str:
    """Returns the address to listen on so that all ranks reach it: loopback stays loopback."""
    with contextlib.suppress(OSError):
        if socket.gethostbyname(master_host).startswith("127."):
            return "127.0.0.1"
    return "0.0.0.0"


@contextlib.contextmanager
def _stop_on_signal(supervisor: Supervisor) -> Iterator[None]:
    """Makes SIGINT, SIGTERM and SIGHUP (a closed terminal, unless under nohup) stop the run.

    Only the main thread may set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda *_: supervisor.request_stop())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _LocalRanks:
    """The rank processes of a run on this machine; what they say goes to one file each."""

    def __init__(
        self, config: RunConfig, supervisor: Supervisor, logs: Path, *, checkpoints: str | None, resumes: bool
    ) -> None:
        self._config = config
        self._checkpoints = checkpoints
        self._resumes = resumes
        self._supervisor = supervisor
        self._logs = logs
        self._exits: dict[int, str] = {}

    def __enter__(self) -> "_LocalRanks":
        self._logs.mkdir()
        with open(self._logs / "nursery.log", "wb") as log:
            self._nursery = subprocess.Popen(
                # -P: a file of the user's named like a standard module must not be imported instead of it.
                [sys.executable, "-P", "-m", "farstep.train.nursery"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,
            )
            orders = [self._orders(rank).to_json() for rank in range(self._config.num_ranks)]
            given = json.dumps({"logs": str(self._logs.resolve()), "orders": orders})
            with contextlib.suppress(BrokenPipeError):  # it has ended already, which `exits` tells
                _pipe(self._nursery.stdin).write(given.encode() + b"\n")
                _pipe(self._nursery.stdin).flush()
        self._reader = threading.Thread(target=self._read_exits, name="farstep-ranks", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.terminate()

    def exits(self) -> dict[int, str]:
        """Returns how each rank that is gone has ended."""
        return dict(self._exits)

    def failure(self) -> str | None:
        """Returns why nothing is known of the ranks any more, if so."""
        if self._nursery.poll() is None or self._reader.is_alive():
            return None
        if len(self._exits) == self._config.num_ranks:
            return None
        return f"the process that has started the ranks {_wording(self._nursery.returncode)}"

    def terminate(self) -> None:
        """Waits a little for the ranks to end, then kills those that still run."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._nursery.wait(TERMINATE_S)
        with contextlib.suppress(BrokenPipeError):
            _pipe(self._nursery.stdin).close()  # makes it kill what is left
        try:
            self._nursery.wait(TERMINATE_S)
        except subprocess.TimeoutExpired:
            self._nursery.kill()  # the ranks notice, for their supervisor is about to go as well
            self._nursery.wait()
        self._reader.join(TERMINATE_S)
        _pipe(self._nursery.stdout).close()

    def _orders(self, rank: int) -> Orders:
        return Orders(
            rank=rank,
            config=self._config,
            control_address=self._supervisor.address,
            token=self._supervisor.token,
            checkpoints=self._checkpoints,
            resumes=self._resumes,
        )

    def _read_exits(self) -> None:
        for line in _pipe(self._nursery.stdout):
            told = json.loads(line)
            self._exits[told["rank"]] = _wording(told["exit"])


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    """Narrows the type of a pipe that was asked for."""
    if pipe is None:
        raise RunFailed("the ranks' parent process has no pipe")
    return pipe


def _wording(returncode: int) -> str:
    if returncode < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-returncode).name}"
        return f"was killed by signal {-returncode}"
    return f"ended with status {returncode}"
