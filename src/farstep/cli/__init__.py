"""The `farstep` command: parsing and printing, one file per verb.

Data goes to standard output, talk to standard error. A mistake of the user ends with one line that
begins with `error:` and exit status 2, a failure of network or peers with 3, one of this machine
with 4; none with a traceback. What a verb needs is imported when it runs, so `--help` is quick.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line of this process and exits, quietly also if Ctrl-C comes while it is being loaded."""
    try:
        from farstep.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
