"""Carries gradients over the Multipath Reliable Connection: one endpoint and one communicator per rank.

The only module of training that knows the engine.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from torch import Tensor
from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from farstep.collectives import Communicator, CommunicatorSettings, Handle
from farstep.collectives.torch_backend.store import TorchStore
from farstep.engine import (
    ConnectionFailed,
    Endpoint,
    EndpointProfile,
    EngineError,
    PortConfig,
    WaitTimeout,
)
from farstep.train.collective import ReduceOp
from farstep.train.config import RunConfig
from farstep.train.control import ControlClient
from farstep.train.path_meter import PathMeter

__all__ = ["TRANSPORT_ERRORS", "UNREACHABLE_ERRORS", "MrcCollective"]

TRANSPORT_ERRORS = (EngineError, DistError)
"""What a rank gets when a peer or the network has failed."""

UNREACHABLE_ERRORS = (ConnectionFailed, WaitTimeout)
"""Those of them with which a rank finds a failure, while others merely hear of it."""

ADDRESSES_TIMEOUT_S = 60.0
"""Longest wait for the supervisor to say how other sites reach our ports."""

SAMPLE_INTERVAL_S = 0.2
"""How often paths are sampled: short enough to show a cut, long enough to cost nothing."""


class MrcCollective:
    """All ranks of a run, joined by one communicator on an endpoint of its own.

    Use as a context manager; leaving it closes communicator and endpoint.

    Args:
        config: the run.
        rank: own place in it.
        store: through which ranks exchange addresses.
        control: tells how other sites reach our ports.

    Raises:
        EngineError: a port cannot be opened, or a peer cannot be reached.
        RunFailed: the supervisor does not answer.
    """

    def __init__(self, config: RunConfig, rank: int, store: Store, control: ControlClient) -> None:
        self.rank = rank
        self.num_ranks = config.num_ranks
        sites = config.site_of_rank
        transport = config.transport
        ports = [PortConfig(config.network.bind_host, plane=plane) for plane in range(config.num_planes)]
        profile = EndpointProfile(mtu_bytes=transport.mtu_bytes, burst_segments=transport.burst_segments)
        profile = replace(profile, ev=replace(profile.ev, share=transport.share))
        self._endpoint = Endpoint(ports, profile=profile, name=f"rank{rank}", site=sites[rank])
        control.send("ports", ports=self._endpoint.ports)
        for index, addresses in enumerate(control.wait_answer(ADDRESSES_TIMEOUT_S)["public"]):
            public = {site: (str(host), int(port)) for site, (host, port) in addresses.items()}
            self._endpoint.set_public_addresses(index, public)
        self._communicator = Communicator(
            self._endpoint,
            rank=rank,
            size=config.num_ranks,
            store=TorchStore(store),
            sites=sites,
            settings=CommunicatorSettings(timeout_s=transport.timeout_s),
        )
        self._meter = PathMeter(config, rank)
        self._control = control

    def all_reduce(self, tensor: Tensor, op: ReduceOp, *, background: bool = False) -> Handle:
        """Replaces a contiguous CPU tensor on every rank by the same bits of the reduction."""
        return self._communicator.all_reduce(tensor.detach().numpy(), op, background=background)

    def abort(self, reason: str) -> None:
        """Makes everything pending and later fail at once, on this rank and its peers."""
        self._communicator.abort(reason)

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Reports every path to the supervisor, several times a second, while the context lasts."""
        is_over = threading.Event()

        def run() -> None:
            while not is_over.wait(SAMPLE_INTERVAL_S):
                self._report_paths()

        thread = threading.Thread(target=run, name="farstep-paths", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(timeout=2.0)

    def _report_paths(self) -> None:
        try:
            changes = self._meter.changes(self._endpoint.take_path_events())
            samples = self._meter.sample(self._endpoint.connections)
        except EngineError:  # the endpoint was closed meanwhile
            return
        for at_ns, fields in changes:
            self._control.send("event", event="path_state", is_shared=False, at_ns=at_ns, fields=fields)
        now_ns = time.monotonic_ns()
        for fields in samples:
            self._control.send("event", event="path_sample", is_shared=False, at_ns=now_ns, fields=fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._communicator.__exit__(kind, error, trace)
        finally:
            self._endpoint.close()
