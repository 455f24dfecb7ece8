"""The program `farstep.lab.Emulator` starts.

It reads its description from standard input and says on standard output, in one JSON line, that it is ready or
why it is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

from pydantic import ValidationError

from farstep.fabric import ConfigError, EmulatedNetwork, describe_validation_error
from farstep.lab.process import EmulatorProcess


def main() -> int:
    """Reads the description from standard input and emulates; returns the exit status."""
    try:
        order = json.load(sys.stdin)
        network = EmulatedNetwork.model_validate(order["network"])
        process = EmulatorProcess(
            network, order["control"], listen_host=order["listen_host"], parent_pid=order["parent_pid"]
        )
    except ValidationError as error:
        return _refuse(describe_validation_error(error, "network"))
    except (ConfigError, OSError) as error:
        return _refuse(str(error))
    _answer({"ok": True, "control": process.control.path})
    process.run()
    with contextlib.suppress(OSError):  # left to us if the parent died; else the parent removes it
        os.rmdir(os.path.dirname(order["control"]))
    return 0


def _refuse(message: str) -> int:
    _answer({"ok": False, "error": message})
    return 2


def _answer(message: dict[str, object]) -> None:
    """Tells the parent, one line on the pipe; if it has gone meanwhile, nobody needs to know."""
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
