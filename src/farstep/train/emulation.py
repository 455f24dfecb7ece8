"""The emulated network of a run, or its absence, as the supervisor drives it."""

from collections.abc import Callable, Sequence
from typing import Any

from farstep.train.config import RunConfig

__all__ = ["Emulation"]


class Emulation:
    """Starts the path emulator if the run needs it.

    Args:
        config: the run; without traffic between sites, or with `network.emulate = false`, nothing is started.
        on_fault: called with the fields of a fault event, from any thread.
    """

    def __init__(self, config: RunConfig, *, on_fault: Callable[[dict[str, Any]], None]) -> None:
        self._config = config

    @property
    def has_died(self) -> bool:
        """Whether the emulator ended before it was closed."""
        return False

    def expose(self, rank: int, ports: Sequence[tuple[str, int]]) -> list[dict[str, tuple[str, int]]]:
        """Makes the ports of a rank reachable from the other sites.

        Returns:
            For each plane, the address to send to from each other site, by its name.
        """
        return [{} for _ in ports]

    def start(self) -> None:
        """Starts the clock of the fault script."""

    def reach_step(self, step: int) -> None:
        """Tells the fault script that a training step begins."""

    def close(self) -> None:
        """Ends the emulator."""
