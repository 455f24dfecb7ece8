"""Loads torch once and forks the ranks of this machine: `python -m farstep.train.nursery`.

One line of JSON on standard input says whom to start; one line on standard output tells of each rank that
has ended. When standard input ends, because the launcher wants so or is gone, the ranks that still run are
killed. Nothing that starts a thread or opens an endpoint may happen before the forks.
"""

import gc
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from farstep.train.orders import Orders
from farstep.train.worker import RANK_FAILED, run_rank

__all__ = ["main"]


def main() -> int:
    """Starts the ranks, waits for all of them, and returns the exit status."""
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C and a closed terminal are the launcher's to handle
        signal.signal(number, signal.SIG_IGN)
    given = json.loads(sys.stdin.readline())
    logs = Path(given["logs"])
    orders = [Orders.from_json(line) for line in given["orders"]]
    gc.freeze()  # what is loaded stays shared with the ranks
    ranks = {_start(order, logs): order.rank for order in orders}
    threading.Thread(target=_kill_at_end_of_input, args=(ranks,), daemon=True).start()
    while ranks:
        # Not reaped before it is forgotten: its number could be another process's by then.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "without WNOHANG it waits"
        rank = ranks.pop(ended.si_pid)
        _, status = os.waitpid(ended.si_pid, 0)
        told = {"rank": rank, "exit": os.waitstatus_to_exitcode(status)}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    return 0


def _start(order: Orders, logs: Path) -> int:
    """Forks one rank and returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        log = os.open(logs / f"rank{order.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nowhere, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        failure = run_rank(order, is_own_process=True)
        status = 0 if failure is None else RANK_FAILED
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        # Leaving without the interpreter's teardown keeps a rank that has failed from hanging on a thread.
        os._exit(status)


def _kill_at_end_of_input(ranks: dict[int, int]) -> None:
    """Kills the ranks that still run once nobody wants them any more; then this process ends by itself."""
    sys.stdin.read()
    for pid in list(ranks):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    sys.exit(main())
