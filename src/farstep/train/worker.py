"""One rank of a run, as a process.

A rank never outlives its supervisor: when the line to it ends, the rank gives up its collective,
and if that does not end it within seconds, the process ends itself.
"""

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from farstep.train.control import ControlClient, Severity
from farstep.train.data import load_corpus
from farstep.train.errors import RunFailed
from farstep.train.orders import Orders
from farstep.train.state_hash import state_hash
from farstep.train.trainer import Keeper, StepReport, Trainer
from farstep.train.transport import TRANSPORT_ERRORS, UNREACHABLE_ERRORS, MrcCollective

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


class RankObserver:
    """Carries what the training loop reports to the supervisor.

    In lockstep all ranks report the same steps and losses, so rank 0 speaks for all.
    """

    def __init__(self, rank: int) -> None:
        self._speaks = rank == 0
        self._stop = threading.Event()
        self.control: ControlClient | None = None

    def on_step_begin(self, step: int) -> None:
        """Reports that a step begins; fault scripts go by it."""
        if self._speaks and self.control is not None:
            self.control.send("step_begin", step=step)

    def on_step(self, report: StepReport) -> None:
        """Reports a step."""
        self._event(
            "step",
            step=report.step,
            loss=report.loss,
            tokens=report.tokens,
            step_time_ns=report.step_time_ns,
            allreduce_ns=report.allreduce_ns,
        )

    def on_eval(self, step: int, loss: float) -> None:
        """Reports a held-out loss."""
        self._event("eval", step=step, loss=loss)

    def on_checkpoint(self, **fields: Any) -> None:
        """Reports what became of a checkpoint."""
        self._event("checkpoint", **fields)

    def should_stop(self) -> bool:
        """Whether the user asked to stop."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Makes the ranks stop after the current step. Safe in a signal handler."""
        self._stop.set()

    def _event(self, event: str, **fields: Any) -> None:
        if self._speaks and self.control is not None:
            self.control.send("event", event=event, is_shared=True, at_ns=time.monotonic_ns(), fields=fields)


class _Rank:
    """What one rank holds while it runs, so that an abort finds whatever exists by then."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.observer = RankObserver(orders.rank)
        self.collective: MrcCollective | None = None
        self.abort_reason: str | None = None

    def on_abort(self, reason: str) -> None:
        """Gives up, from the thread that listens to the supervisor."""
        if self.abort_reason is not None:
            return
        self.abort_reason = reason
        watchdog = threading.Timer(GIVE_UP_S, os._exit, args=(RANK_FAILED,))
        watchdog.daemon = True
        watchdog.start()
        if self.collective is not None:
            self.collective.abort(reason)

    def train(self, store: Store, control: ControlClient) -> None:
        config, rank = self.orders.config, self.orders.rank
        corpus = load_corpus(
            config.data.text,
            held_out_fraction=config.data.held_out_fraction,
            context_bytes=config.model.context_bytes,
        )
        with contextlib.ExitStack() as stack:
            collective = stack.enter_context(MrcCollective(config, rank, store, control))
            self.collective = collective
            if self.abort_reason is not None:
                raise RunFailed(self.abort_reason)
            keeper = self._open_keeper(stack)
            trainer = Trainer(config, corpus, collective, self.observer, keeper)
            control.send(
                "ready",
                num_parameters=trainer.num_parameters,
                gradient_bytes=trainer.gradient_bytes,
                torch_version=torch.__version__,
                state_hash=state_hash(trainer.model, trainer.optimizer),
                first_step=trainer.first_step,
            )
            control.wait_answer(START_TIMEOUT_S)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPUTE_NICE)
            with collective.sampling():
                outcome = trainer.run()
            control.send(
                "done",
                steps=outcome.steps,
                is_interrupted=outcome.is_interrupted,
                final_loss=outcome.final_loss,
                held_out_loss=outcome.held_out_loss,
                state_hash=outcome.state_hash,
            )

    def _open_keeper(self, stack: contextlib.ExitStack) -> Keeper | None:
        if self.orders.checkpoints is None:
            return None
        from farstep.train.kept import KeptCheckpoints  # what it imports takes a second

        return stack.enter_context(KeptCheckpoints(self.orders, self.observer.on_checkpoint))


def run_rank(orders: Orders, open_store: Callable[[], Store], *, is_own_process: bool) -> str | None:
    """Runs one rank to the end and tells the supervisor how it went.

    Args:
        orders: who this rank is and whom to report to.
        open_store: opens what the ranks exchange addresses through.
        is_own_process: the launcher made this process for the rank, and standard error is its log. Otherwise
            the process is the user's: SIGINT, SIGTERM and SIGHUP then end the run after the current step, on all
            ranks, and nothing is printed.

    Returns:
        None, or in one line why the rank could not finish.
    """
    rank = _Rank(orders)
    if not is_own_process:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if (
                number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
            ):  # nohup stays in force
                signal.signal(number, lambda *_: rank.observer.request_stop())
    control = ControlClient(
        orders.control_address,
        orders.token,
        orders.rank,
        on_stop=rank.observer.request_stop,
        on_abort=rank.on_abort,
        pid=os.getpid(),
    )
    rank.observer.control = control
    try:
        rank.train(open_store(), control)
    except Exception as error:
        if is_own_process:
            traceback.print_exc()
        severity = Severity.ABORTED if rank.abort_reason is not None else _severity_of(error)
        control.send("failed", message=_in_one_line(error), severity=severity)
        control.close()
        return rank.abort_reason or _in_one_line(error)
    control.close()
    return None


def _severity_of(error: Exception) -> Severity:
    """Says how likely an error is the cause and not the consequence of what happened to another rank."""
    if not isinstance(error, TRANSPORT_ERRORS):
        return Severity.BROKEN
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, UNREACHABLE_ERRORS):
            return Severity.UNREACHABLE
        link = link.__cause__
    return Severity.ABORTED


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, (RunFailed, *TRANSPORT_ERRORS)) else f"{type(error).__name__}: {text}"
