"""`python -m farstep.lab NETWORK.toml`: the path emulator by itself."""

from __future__ import annotations

import argparse
import sys

from farstep.fabric import ConfigError
from farstep.lab.standalone import run_emulator


def main(arguments: list[str] | None = None) -> int:
    """Emulates until Ctrl-C; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m farstep.lab",
        description="Carries UDP between sites over emulated paths, with faults.",
    )
    parser.add_argument("file", metavar="NETWORK.toml", help="sites, paths, ports to expose and faults")
    parser.add_argument(
        "--for-s", type=float, metavar="SECONDS", help="end after this time instead of at Ctrl-C"
    )
    chosen = parser.parse_args(arguments)
    try:
        run_emulator(chosen.file, for_s=chosen.for_s)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
