"""The `farstep` command: parsing and printing, one file per verb.

Data goes to standard output, talk to standard error. A mistake of the user ends with one line that
begins with `error:` and exit status 2, a failure of network or peers with 3, one of this machine
with 4; none with a traceback. What a verb needs is imported when it runs, so `--help` is quick.
"""

from farstep.cli.app import main

__all__ = ["main"]
