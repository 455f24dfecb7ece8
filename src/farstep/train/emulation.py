"""The emulated network of a run, or its absence, as the supervisor drives it."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from farstep.lab import Emulator, EmulatorError
from farstep.train.config import RunConfig
from farstep.train.errors import RunFailed

__all__ = ["Emulation"]

FAULT_FIELDS = ("action", "fault_id", "fault", "target", "value", "step")
"""What the event log keeps of a fault the emulator reports."""


class Emulation:
    """Starts the path emulator if the run needs it.

    Args:
        config: the run; without traffic between sites, or with `network.emulate = false`, nothing is started.
        on_fault: called with the fields of a fault event and the time it happened (monotonic ns), from a
            thread of its own.

    Raises:
        RunFailed: the emulator could not be started.
    """

    def __init__(self, config: RunConfig, *, on_fault: Callable[[dict[str, Any], int], None]) -> None:
        self._config = config
        self._on_fault = on_fault
        network = config.emulated_network()
        try:
            self._emulator = None if network is None else Emulator(network)
        except EmulatorError as error:
            raise RunFailed(str(error)) from error
        self._has_died = False
        if self._emulator is not None:
            self._follower = threading.Thread(target=self._follow, name="farstep-faults", daemon=True)
            self._follower.start()

    @property
    def has_died(self) -> bool:
        """Whether the emulator ended before it was closed."""
        return self._emulator is not None and (self._has_died or self._emulator.pid is None)

    def expose(self, rank: int, ports: Sequence[tuple[str, int]]) -> list[dict[str, tuple[str, int]]]:
        """Makes the ports of a rank reachable from the other sites.

        Args:
            rank: whose ports.
            ports: address of its port in each plane.

        Returns:
            For each plane, the address to send to from each other site, by its name; empty if there is
            no emulator between them.
        """
        if self._emulator is None:
            return [{} for _ in ports]
        site = self._config.site_of_rank[rank]
        public = [
            self._emulator.expose(site, plane, (host, port)) for plane, (host, port) in enumerate(ports)
        ]
        return [{name: address for name, address in plane.items() if name != site} for plane in public]

    def start(self) -> None:
        """Starts the clock of the fault script."""
        if self._emulator is not None and self._config.faults:
            self._emulator.load(self._config.faults)

    def reach_step(self, step: int) -> None:
        """Tells the fault script that a training step begins."""
        if self._emulator is None or not self._config.faults:
            return
        try:
            self._emulator.notify_step(step)
        except EmulatorError:
            self._has_died = True

    def close(self) -> None:
        """Ends the emulator."""
        emulator, self._emulator = self._emulator, None
        if emulator is not None:
            emulator.close()
            self._follower.join(timeout=2.0)

    def _follow(self) -> None:
        if self._emulator is None:
            return
        try:
            for event in self._emulator.follow():
                if event["kind"] == "fault":
                    fields = {key: event[key] for key in FAULT_FIELDS}
                    self._on_fault(fields, event["monotonic_ns"])
        except (OSError, ValueError):
            return  # the connection was closed under us, by `close`
