"""Time to import farstep, to print the command's help, and to install from source."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.measure import Report, arguments, interleave, parse

ROOT = Path(__file__).resolve().parent.parent
INSTALL_LIMIT_S = 900


def timed(*command: str) -> float:
    """Seconds a command takes; it must succeed."""
    begin_s = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir())
    return time.monotonic() - begin_s


def install_s() -> float:
    """Seconds from nothing to an installed farstep: environment, build tools, compilation."""
    with tempfile.TemporaryDirectory() as directory:
        begin_s = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        python = os.path.join(directory, "bin", "python")
        # The build directory of the source tree would make it a rebuild.
        command = [
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--config-settings",
            f"build-dir={directory}/build",
            str(ROOT),
        ]
        subprocess.run(command, check=True, timeout=INSTALL_LIMIT_S)
        elapsed_s = time.monotonic() - begin_s
        subprocess.run([python, "-c", "import farstep.engine"], check=True, cwd=directory)
    return elapsed_s


def main() -> int:
    parser = arguments(__doc__ or "", rounds=9)
    parser.add_argument(
        "--install", action="store_true", help="also install from source into an empty environment"
    )
    options = parse(parser)
    report = Report(
        "starting",
        f"wall time of a process, median of {options.rounds} after one to warm the file cache, next to a Python "
        "that does nothing",
        is_silent=options.json,
    )
    report.begin()
    python = sys.executable
    variants = {
        "python -c pass": lambda: timed(python, "-c", "pass"),
        "import farstep": lambda: timed(python, "-c", "import farstep"),
        "import farstep.engine": lambda: timed(python, "-c", "import farstep.engine"),
        "farstep --help": lambda: timed(python, "-m", "farstep", "--help"),
    }
    interleave(1, variants, settle_s=0)
    figures = interleave(options.rounds, variants, settle_s=0)
    medians = {name: report.add(name, values, "s") for name, values in figures.items()}
    report.check("import farstep", medians["import farstep"], 0.3, at_least=False, unit="s")
    report.check("farstep --help", medians["farstep --help"], 0.5, at_least=False, unit="s")
    if options.install:
        found = report.add("install from source", [install_s()], "s")
        report.check("install from source", found, 180.0, at_least=False, unit="s")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
