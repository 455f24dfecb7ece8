"""One rank of a run, as a process.

The rank is a replica group of a run with a coordinator. When another one is lost, it goes on with those that are left;
without its supervisor it does not: when the line to it ends, the rank ends too.
"""

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

import farstep
from farstep.engine import EndpointProfile, EngineError, PortConfig
from farstep.membership import MembershipError
from farstep.train.control import ControlClient
from farstep.train.coordination import RUN_NAME
from farstep.train.data import load_corpus
from farstep.train.errors import ConfigError, RunFailed
from farstep.train.loop import TrainingLoop
from farstep.train.orders import Orders
from farstep.train.path_meter import PathMeter, sampling

__all__ = ["RANK_FAILED", "run_rank"]

RANK_FAILED = 3
"""Exit status of a rank that could not finish."""

GIVE_UP_S = 3.0
"""A rank told to give up that still runs after this long ends itself: something does not return."""

COMPUTE_NICE = 5
"""The thread that computes gives way to those that carry gradients: where there are more ranks than cores, a packet
that waits for a time slice looks lost to its sender."""

START_TIMEOUT_S = 180.0
"""Longest wait for the supervisor and the other ranks while starting."""

EXPECTED_ERRORS = (ConfigError, RunFailed, EngineError, MembershipError)
"""Those whose message is enough."""


class _Rank:
    """What one rank holds while it runs, so that signals and the supervisor find whatever exists by then."""

    def __init__(self, orders: Orders, *, is_own_process: bool) -> None:
        self.orders = orders
        self.abort_reason: str | None = None
        self._is_own_process = is_own_process
        self._run: farstep.Run | None = None
        self._wants_stop = False

    def request_stop(self) -> None:
        """Makes all ranks stop after the current step. Safe in a signal handler."""
        self._wants_stop = True
        if self._run is not None:
            self._run.end()

    def on_abort(self, reason: str) -> None:
        """Gives up, from the thread that listens to the supervisor."""
        if self.abort_reason is not None:
            return
        self.abort_reason = reason
        if self._is_own_process:
            sys.stderr.write(f"giving up: {reason}\n")
            sys.stderr.flush()
            os._exit(RANK_FAILED)
        watchdog = threading.Timer(GIVE_UP_S, os._exit, args=(RANK_FAILED,))
        watchdog.daemon = True
        watchdog.start()
        if self._run is not None:
            self._run.abort(reason)

    def train(self, control: ControlClient) -> None:
        """Takes part in the run from its beginning to its end.

        Raises:
            RunFailed: training has diverged, or this rank was told to give up.
        """
        config = self.orders.config
        corpus = load_corpus(
            config.data.text,
            held_out_fraction=config.data.held_out_fraction,
            context_bytes=config.model.context_bytes,
        )
        loop = TrainingLoop(config, corpus, control.send)
        checkpoint = self._checkpoint(loop)
        control.send("loaded")
        with self._joined(control) as run:
            loop.begin(run, checkpoint)
            control.send(
                "ready",
                num_parameters=loop.num_parameters,
                torch_version=torch.__version__,
                first_step=loop.trainer.committed,
            )
            control.wait_answer(START_TIMEOUT_S)
            if self._wants_stop:
                run.end()
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPUTE_NICE)
            meter = PathMeter(config, run.site)
            with sampling(meter, run.endpoint, lambda kind, at_ns, fields: loop.tell(kind, at_ns, **fields)):
                loop.train()
            if self.abort_reason is not None:
                raise RunFailed(self.abort_reason)
            if not run.is_finished and loop.trainer.committed < config.run.steps:
                control.send("left", how="left the run, as it was asked to")
                return
            place = loop.trainer.place
            if checkpoint is not None and place is not None and place.seat == 0:
                checkpoint.save_last(loop.trainer.committed, loop.trainer.state)
            control.send("done", **loop.outcome())

    def _checkpoint(self, loop: TrainingLoop) -> Any:
        if self.orders.checkpoints is None:
            return None
        from farstep.train.kept import KeptCheckpoint  # what it imports takes a second

        def tell(action: str, fields: dict[str, Any]) -> None:
            if self.orders.rank == 0 or action not in ("loaded", "broken"):  # all see the same at the start
                loop.tell("checkpoint", action=action, **fields)

        return KeptCheckpoint(
            self.orders.checkpoints,
            every_steps=self.orders.config.run.checkpoint_every_steps or None,
            resumes=self.orders.resumes,
            tell=tell,
        )

    @contextlib.contextmanager
    def _joined(self, control: ControlClient) -> Iterator[farstep.Run]:
        """Joins the run once all ranks can, so that other sites reach it through the emulated network."""
        config, rank, transport = self.orders.config, self.orders.rank, self.orders.config.transport
        answer = control.wait_answer(START_TIMEOUT_S)
        if answer["is_own"]:  # whatever else the shell says of coordinators is not about this one
            for name in [name for name in os.environ if name.startswith("FARSTEP_")]:
                del os.environ[name]
        os.environ["FARSTEP_RANKS_PER_GROUP"] = "1"  # each rank of torchrun has a replica of its own
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        profile = EndpointProfile(mtu_bytes=transport.mtu_bytes, burst_segments=transport.burst_segments)
        with farstep.join(
            answer["coordinators"],
            name=config.group_names[rank],
            site=config.site_of_rank[rank],
            spare=False,
            run=RUN_NAME if answer["is_own"] else None,
            ports=[PortConfig(config.network.bind_host, plane=plane) for plane in range(config.num_planes)],
            profile=replace(profile, ev=replace(profile.ev, share=transport.share)),
        ) as run:
            self._run = run
            if not self._is_own_process:  # a signal to a process of the user's is for the whole run
                for number, handler in handlers.items():
                    signal.signal(number, handler)
            control.send("ports", ports=run.endpoint.ports)
            for index, addresses in enumerate(control.wait_answer(START_TIMEOUT_S)["public"]):
                public = {site: (str(host), int(port)) for site, (host, port) in addresses.items()}
                run.endpoint.set_public_addresses(index, public)
            yield run


def run_rank(orders: Orders, *, is_own_process: bool) -> str | None:
    """Runs one rank to the end and tells the supervisor how it went.

    Args:
        orders: who this rank is and whom to report to.
        is_own_process: the launcher made this process for the rank, and standard error is its log. SIGTERM then has
            this rank leave. Otherwise the process is the user's: SIGINT, SIGTERM and SIGHUP end the run after the
            current step, on all ranks, and nothing is printed.

    Returns:
        None, or in one line why the rank could not finish.
    """
    rank = _Rank(orders, is_own_process=is_own_process)
    if not is_own_process:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if (
                number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
            ):  # nohup stays in force
                signal.signal(number, lambda *_: rank.request_stop())
    control = ControlClient(
        orders.control_address,
        orders.token,
        orders.rank,
        on_stop=rank.request_stop,
        on_abort=rank.on_abort,
        pid=os.getpid(),
    )
    try:
        rank.train(control)
    except Exception as error:
        if rank.abort_reason is None:
            if is_own_process:
                traceback.print_exc()
            is_of_run = isinstance(error, RunFailed)
            control.send("failed", message=_in_one_line(error), is_of_run=is_of_run)
        control.close()
        return rank.abort_reason or _in_one_line(error)
    control.close()
    return None


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, EXPECTED_ERRORS) else f"{type(error).__name__}: {text}"
