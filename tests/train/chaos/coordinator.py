"""A coordinator of a chaos run: `farstep coordinator` itself, in a process whose wall clock can jump."""

from __future__ import annotations

import faulthandler
import signal
import sys
from typing import Any

import farstep.cli.app  # loaded before the fork
import farstep.coordinator.server
from tests.train.chaos import clocks

__all__ = ["main"]

LOADED = (farstep.cli.app, farstep.coordinator.server)


def main(order: dict[str, Any]) -> int:
    """Runs the command with the given arguments."""
    from farstep.cli import main as farstep_main

    clocks.install(order["seed"])
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True)
    sys.argv = ["farstep", "coordinator", *order["arguments"]]
    farstep_main()
    return 0
