"""A run as one of its processes sees it: who this is, who the others are, and when to stop."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from farstep.engine import Endpoint, EndpointProfile, Identity, PortConfig
from farstep.membership import MemberInfo
from farstep.membership.addresses import AddressBook, AddressError
from farstep.train.arguments import expect_counts, expect_known, expect_settings, expect_who
from farstep.train.elastic.farewell import compare_at_end
from farstep.train.elastic.inner import AloneInside, InnerRanks, TogetherInside
from farstep.train.elastic.link import MembershipLink
from farstep.train.elastic.relay import MembershipRelay, RelayedMembership, RelayState
from farstep.train.elastic.samples import ShardSource
from farstep.train.elastic.seams import HealingPort, RunOver
from farstep.train.elastic.solo import SoloMembership
from farstep.train.elastic.state import ReplicaState
from farstep.train.environment import Environment, detect
from farstep.train.errors import ConfigError, reason_of
from farstep.train.gloo_threads import settle_at_exit
from farstep.train.healing import Healing, HealingSettings, state_sha256
from farstep.train.place import Place
from farstep.train.replay.membership import ReplayMembership, is_replay
from farstep.train.shard import Shard

if TYPE_CHECKING:
    from farstep.train.elastic.recall import Recall
    from farstep.train.elastic.trainer import Trainer

__all__ = ["Run", "join"]

logger = logging.getLogger("farstep.train")

SHARD_OPTIONS = tuple(
    name for name in inspect.signature(Shard).parameters if name not in ("source", "place", "on_error")
)
"""What :meth:`Run.shard` takes beside the source."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Run:
    """This process's part in a run; made by :func:`join`.

    Use as a context manager, or let the interpreter's exit end it.

    Attributes:
        name: name of the replica group.
        site: its failure domain.
        environment: what the launcher said.
        endpoint: carries all traffic with other replica groups.
        inner: the ranks that share this replica.
        link: the line to the coordinator.
    """

    def __init__(
        self,
        environment: Environment,
        link: MembershipLink,
        endpoint: Endpoint,
        inner: InnerRanks,
        *,
        healing: Callable[..., HealingPort] | None = None,
    ) -> None:
        self.environment = environment
        self.name = environment.group
        self.site = environment.site
        self.endpoint = endpoint
        self.inner = inner
        self.link = link
        self._healing = healing
        self._trainer: Trainer | None = None
        self._shard: tuple[Any, Shard] | None = None
        self._is_over = False
        self._is_finished = False
        self._is_closed = False
        self._handlers: dict[int, Any] = {}
        self._process = os.getpid()
        settle_at_exit()
        atexit.register(self._at_exit)

    # -- facts ----------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do: the run was ended, or this member has left it."""
        return self._is_over

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended for all replica groups, and not just for this one that has left it."""
        return self._is_finished or self.link.has_run_ended

    @property
    def is_complete(self) -> bool:
        """Whether the run is at its end and this member holds the final state: that after its last step.

        A member with a seat does when its loop has come to the end, or the run was ended. A spare gets the last steps
        when the run ends, from those who made them; it is False if they were gone before it had them, and then
        :attr:`step` says how far it got. False too for a member that has left.
        """
        trainer = self._trainer
        if trainer is None:
            return False
        if self.link.final_step is not None:
            return trainer.committed == self.link.final_step
        is_exhausted = self._shard is not None and self._shard[1].ended_at == trainer.committed
        return self._is_finished or is_exhausted

    @property
    def is_replay(self) -> bool:
        """Whether this is a recorded run that is run again; then no checkpoint is read or written."""
        return isinstance(self.link.membership, ReplayMembership)

    @property
    def step(self) -> int:
        """Steps that the run has committed, as known here."""
        return self._trainer.committed if self._trainer is not None else 0

    @property
    def member_id(self) -> str:
        """Identity of this incarnation of the replica group."""
        return self.link.info.member_id

    # -- data -----------------------------------------------------------------------------------------

    def shard(self, source: Any, **options: Any) -> Shard:
        """Deals the samples of a loader or data set to the replica groups; the result is iterated over.

        Every sample of an epoch is used exactly once, whoever joins, leaves or fails. A loop covers what is left of
        the current epoch, or with `epochs` or `steps` what is left of so many; it ends early when the run does.
        Calling it again with the same source goes on where the last loop ended.

        Args:
            source: a `DataLoader` or a data set with `__len__` and `__getitem__`.
            options: as for :class:`farstep.train.shard.Shard`: `batch_size`, `epochs`, `steps`, `seed`, ...

        Raises:
            ConfigError: the source cannot be dealt, or there is no trainer yet.
        """
        if self._trainer is None:
            raise ConfigError("run.shard(...) needs the trainer: make farstep.Trainer(run, ...) before it")
        expect_known(options, SHARD_OPTIONS, "run.shard(...)")
        if self._shard is not None:
            known, shard = self._shard
            if known is not source:
                raise ConfigError(
                    "run.shard(...) was called with another source before; a run deals one data set: "
                    "join data sets with torch.utils.data.ConcatDataset, and iterate over others directly"
                )
            expect_counts(epochs=options.get("epochs"), steps=options.get("steps"))
            for name in ("epochs", "steps"):
                if name in options:
                    setattr(shard, name, options[name])
            return shard
        options.setdefault("batch", self._trainer.policy.batch)
        shard = Shard(source, place=self._place, on_error=self._trainer.abandon, **options)
        self._shard = source, shard
        self._trainer.state.attach_data(ShardSource(shard))
        return shard

    def _place(self) -> Place | None:
        trainer = self._trainer
        assert trainer is not None, "a shard is made after the trainer"
        if self._is_over:
            return None
        try:
            trainer.ready()
        except RunOver:
            self.on_over()
            return None
        place = trainer.place
        if place is None or self._is_over:
            return None
        return place._replace(inner_rank=self.inner.rank, num_inner=self.inner.size)

    # -- ending ---------------------------------------------------------------------------------------

    def leave(self, reason: str = "asked to leave") -> None:
        """Leaves at the next step boundary, which costs the others nothing; returns at once.

        The loop over the shard ends by itself once this member is let go. Nobody lets the last one go: it saves a
        checkpoint, if it has a :class:`farstep.Checkpoint`, and ends the run. Safe in any thread.
        """
        if not self.link.is_leaving and not self._is_over:
            logger.warning("leaving: %s; at the end of a step, and within %g s", reason, LEAVE_S)
        self.link.leave(reason)

    def end(self) -> None:
        """Ends the run for all replica groups after the step under way."""
        if self._trainer is not None:
            self._trainer.end()

    def close(self) -> None:
        """Ends this process's part and frees everything. Safe to call twice.

        If the loop over the shard has come to its end, or the run was told to :meth:`end`, the run is finished for
        all. If the loop was left before that, this member leaves and the others go on. Without a shard nobody but the
        program knows the end, and closing says that it is reached.
        """
        if self._is_closed:
            return
        if not self._is_over and not self._is_through(self._shard is None):
            self.abandon("its program left the loop before the end of the run")
        self._is_closed = True
        atexit.unregister(self._at_exit)
        trainer = self._trainer
        if trainer is not None and (self._is_finished or not self._is_over):
            self._tell_state(trainer)
            self.link.finish(trainer.committed)
            if trainer.wants_end and not self._is_finished:
                trainer.give_up("the run was ended")  # the others may be at a step that will never be made
            trainer.linger()
        self._is_over = True
        if self._trainer is not None:
            self._trainer.close()
        if self._shard is not None:
            self._shard[1].close()
        self.link.close()
        self.inner.close()
        self.endpoint.close()
        self._restore_signals()

    def _is_through(self, is_end_by_closing: bool) -> bool:
        """Whether the run is at its end, as far as this member can know.

        Args:
            is_end_by_closing: the program says so by closing the run here.
        """
        trainer = self._trainer
        if trainer is None or trainer.place is None:
            return False
        is_exhausted = self._shard is not None and self._shard[1].ended_at == trainer.committed
        return is_exhausted or trainer.wants_end or is_end_by_closing

    def _at_exit(self) -> None:
        """Closes what nobody has closed; a program that ends in the middle of its loop ends nobody else's run."""
        if os.getpid() != self._process:  # a child that was forked, whose end is none of the run
            return
        error = getattr(sys, "last_value", None)
        if not self._is_over and not self._is_closed:
            if error is not None:
                self.abandon(reason_of(error))
            elif not self._is_through(False):
                self.abandon("its program ended without run.close() before the end of the run")
        self.close()

    def _tell_state(self, trainer: Trainer) -> None:
        """Logs the hash of the state, which a replay must come to as well; compares it with that of the others."""
        place = trainer.place
        if place is None:
            return
        sha256 = state_sha256(trainer.state.capture())
        if (place.seat == 0 or self.is_replay) and self.inner.size == 1:
            self.link.membership.event("final_state", step=trainer.committed, sha256=sha256)
        generation = self.link.membership.current()
        if generation is not None and not self.is_replay:
            compare_at_end(
                self.link.membership, generation, step=trainer.committed, lane=self.inner.rank, sha256=sha256
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_failure = error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0))
        if error is not None and is_failure and not self._is_over:
            self.abandon(reason_of(error))
        self.close()

    # -- for the trainer ------------------------------------------------------------------------------

    def bind(self, trainer: Trainer) -> None:
        """Makes a trainer the only one of this run."""
        if self._trainer is not None:
            raise ConfigError("this run has a trainer already; a run trains one model")
        self._trainer = trainer

    def healing_factory(
        self, state: ReplicaState, recall: Recall | None
    ) -> Callable[[Any], HealingPort] | None:
        """What makes the healing of a membership; None if there is none.

        Args:
            state: of the replica.
            recall: takes states back from the members' memory, if anything does.
        """
        if self._healing is None or self.is_replay:
            return None  # members of a replay that come back get the whole state
        make = self._healing

        def for_membership(membership: Any) -> HealingPort:
            return make(
                membership=membership,
                endpoint=self.endpoint,
                adapter=state,
                run_id=self.environment.run,
                lane=self.inner.rank,
                held_step=(lambda: recall.newest_step) if recall is not None else None,
            )

        return for_membership

    @property
    def must_go(self) -> bool:
        """Whether this member goes at the next boundary without being let go."""
        if not self.link.is_leaving:
            return False
        is_alone = self._trainer is not None and self._trainer.is_alone
        return is_alone or self.link.leaving_for_s() > LEAVE_S

    def on_over(self, *, is_end: bool = False) -> None:
        """There is nothing left to do, for this member or, if `is_end`, for anybody."""
        self._is_over = True
        self._is_finished = is_end
        if self._trainer is not None and self.link.final_step is not None:
            self._trainer.follow_to_end(self.link.final_step)

    def abandon(self, reason: str) -> None:
        """Goes away in the middle of whatever is under way; the others go on without this member."""
        self._is_over = True
        self.link.leave(reason)
        if self._trainer is not None:
            self._trainer.give_up(reason)
        self.link.close()

    def abort(self, reason: str) -> None:
        """Gives up at once, from any thread: the step under way fails, and the loop over the shard ends."""
        self._is_over = True
        self.link.close()
        if self._trainer is not None:
            self._trainer.interrupt(reason)

    # -- signals --------------------------------------------------------------------------------------

    def watch_signals(self) -> None:
        """Takes SIGTERM and the first Ctrl-C as notice: this member leaves at the next step boundary."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            self._handlers[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: Any) -> None:
        name = signal.Signals(number).name
        if self.link.is_leaving or self._is_closed:
            self._restore_signals()
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        # In a thread: the main one may hold any lock just now.
        threading.Thread(
            target=self.leave, args=(f"preemption notice ({name})",), name="farstep-leave", daemon=True
        ).start()

    def _restore_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._handlers.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            self._handlers.clear()


OUTSIDE = ("192.0.2.1", 9)
"""An address that belongs to nobody (RFC 5737), to ask which way leads out."""

LEAVE_S = 10.0
"""A member that wants to leave goes after this long, whether or not the others have let it go: they may be waiting for
a coordinator that is gone, and a preemption notice runs out."""


def join(
    coordinator: str | Sequence[str] | None = None,
    *,
    name: str | None = None,
    site: str | None = None,
    spare: bool | None = None,
    tls: str | None = None,
    run: str | None = None,
    ports: Sequence[PortConfig | str] | None = None,
    profile: EndpointProfile | None = None,
    healing: HealingSettings | None = None,
) -> Run:
    """Joins a run: says who this process is, and connects it to the coordinator.

    Everything has its default in the environment (see :mod:`farstep.train.environment`), so that `farstep.join()` is
    enough under torchrun, Slurm, Kubernetes JobSet, Ray, or with `FARSTEP_COORDINATOR` set by hand. Without a
    coordinator this replica group trains alone.

    Args:
        coordinator: address of the coordinator, or of several: `wss://host:7077`, `host:7077`, or `file:PATH` of a
            file that names one and is read at every attempt. `FARSTEP_COORDINATOR`.
        name: of the replica group; the same again when it is restarted. `FARSTEP_GROUP`.
        site: where it is; members of one site are expected to fail together. `FARSTEP_SITE`.
        spare: wait with the state at hand until a member is lost. `FARSTEP_SPARE`.
        tls: folder with `ca.pem` and this member's `NAME.pem` and `NAME.key`. With it peers are checked too, and
            what goes to another site is encrypted. `FARSTEP_TLS`.
        run: name of the run. `FARSTEP_RUN`.
        ports: local UDP ports, one per plane of the network. `FARSTEP_BIND`.
        profile: settings of the transport.
        healing: rates and bounds of the transfer of state to newcomers.

    Raises:
        ConfigError: the environment or an argument does not fit.
        MembershipError: the coordinator refuses this member.
        EngineError: a port cannot be opened.
    """
    expect_settings(coordinator, name, site, spare, tls, run, ports, profile, healing)
    found = detect()
    coordinators = found.coordinators
    if coordinator is not None:
        coordinators = (coordinator,) if isinstance(coordinator, str) else tuple(coordinator)
    environment = Environment(
        launcher=found.launcher,
        group=name or found.group,
        site=found.site if site is None else site,
        rank=found.rank,
        size=found.size,
        rendezvous=found.rendezvous,
        coordinators=coordinators,
        run=run or found.run,
        tls=tls or found.tls,
        is_spare=found.is_spare if spare is None else spare,
        member_id=found.member_id if name in (None, found.group) else None,
        bind=found.bind,
    )
    expect_who(environment)
    try:
        host = _own_host(coordinators)
    except AddressError as error:
        raise ConfigError(str(error)) from None
    _warm_up()
    inner = _join_inner(environment)
    link = _link(environment, inner)
    wanted = ports if ports is not None else environment.bind or (f"{host}:0",)
    profile = _with_identity(profile, environment)
    endpoint = Endpoint(list(wanted), profile=profile, name=environment.group, site=environment.site)
    joined = Run(environment, link, endpoint, inner, healing=partial(Healing, settings=healing))
    joined.watch_signals()
    return joined


def _with_identity(profile: EndpointProfile | None, environment: Environment) -> EndpointProfile | None:
    """A member that has certificates shows them to its peers too, and packets between sites are encrypted."""
    if environment.tls is None or (profile is not None and profile.security.identity is not None):
        return profile
    from farstep.membership.tls import TlsFiles

    try:
        files = TlsFiles.in_directory(environment.tls, environment.group)
    except OSError as error:
        raise ConfigError(str(error)) from None
    profile = profile or EndpointProfile()
    identity = Identity(files.authority, files.certificate, files.key)
    return replace(profile, security=replace(profile.security, identity=identity))


def _warm_up() -> None:
    """Loads now what would otherwise be loaded at the first step.

    Loading holds the interpreter for seconds on a busy machine, and a member that is silent for so long is given up.
    """
    import torch

    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # loads half of torch


def _join_inner(environment: Environment) -> InnerRanks:
    if environment.size == 1:
        return AloneInside()
    assert environment.rendezvous is not None, "detected with every replica group of several ranks"
    return TogetherInside(environment.rendezvous, environment.rank, environment.size)


def _link(environment: Environment, inner: InnerRanks) -> MembershipLink:
    """Connects rank 0 of the replica group to the coordinator, and the others to rank 0."""
    info = MemberInfo.create(
        environment.group,
        site=environment.site,
        num_ranks=environment.size,
        labels={"launcher": environment.launcher},
        member_id=environment.member_id,
    )
    connect = _connector(environment)
    if not isinstance(inner, TogetherInside):
        return MembershipLink(info, connect)
    if inner.rank == 0:
        relay = MembershipRelay(inner)
        link = MembershipLink(info, lambda incarnation: relay.wrap(connect(incarnation)))
        inner.on_lost = lambda reason: link.close()
        return link
    state = RelayState(inner)
    inner.on_lost = state.lose
    return MembershipLink(info, lambda incarnation: RelayedMembership(inner, state))


def _connector(environment: Environment) -> Callable[[MemberInfo], Any]:
    if is_replay():
        return ReplayMembership.from_environment
    if not environment.coordinators:
        return lambda info: SoloMembership(info, run=environment.run)
    from farstep.membership.client import MembershipClient
    from farstep.membership.tls import TlsFiles

    try:
        tls = (
            TlsFiles.in_directory(environment.tls, environment.group) if environment.tls is not None else None
        )
    except OSError as error:
        raise ConfigError(str(error)) from None

    def connect(info: MemberInfo) -> Any:
        return MembershipClient(
            list(environment.coordinators),
            info,
            run=environment.run,
            tls=tls,
            wants="spare" if environment.is_spare else "seat",
        )

    return connect


def _own_host(coordinators: Sequence[str]) -> str:
    """The local address that the way to the coordinator leaves from; without any, the one of this machine alone."""
    if not coordinators:
        return "127.0.0.1"
    ways = [(parts.hostname, parts.port) for parts in map(urlsplit, AddressBook(coordinators).urls())]
    # A file that names no coordinator yet says nothing about the way there: what leads out of this machine does.
    for host, port in [*ways, OUTSIDE]:
        try:
            family, kind, _, _, target = socket.getaddrinfo(host, port or 7077, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(target)  # chooses a route; sends nothing
                own = str(probe.getsockname()[0])
        except OSError:
            continue
        return f"[{own}]" if ":" in own else own
    return "127.0.0.1"
