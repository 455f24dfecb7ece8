"""The coordinator of a run that this machine has started for itself: a process on loopback."""

import json
import time
import urllib.request
from collections.abc import Collection
from pathlib import Path
from typing import Any

from farstep.train.config import RunConfig
from farstep.train.elastic.launch import LocalJob
from farstep.train.errors import RunFailed

__all__ = ["RUN_NAME", "RunCoordinator"]

RUN_NAME = "train"
"""Name of the run at its coordinator."""

JOIN_WINDOW_S = 120.0
"""All ranks join at the same time, and a run that began without one that is late would have other bits."""

RESTART_INTERVAL_S = 5.0
"""A coordinator that has died is started again at most this often; the run does not need it meanwhile."""

ANSWER_TIMEOUT_S = 2.0


class RunCoordinator:
    """Starts a coordinator and keeps it there; it ends when this process does, however that happens.

    Args:
        folder: for its event log, its address and what it prints.
        config: the run.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._job = LocalJob(
            (),
            groups=config.num_ranks,
            folder=folder.resolve(),
            config={
                "run": RUN_NAME,
                "min_groups": config.run.min_groups,
                "silence_s": config.run.silence_s,
                "join_window_s": JOIN_WINDOW_S,
            },
        )
        self._started_s = 0.0

    @property
    def address(self) -> str:
        """Where members find it, also after it was started again."""
        return f"file:{self._job.address_file}"

    def start(self) -> None:
        """Starts it and waits until it listens.

        Raises:
            RunFailed: it did not come up.
        """
        self._started_s = time.monotonic()
        self._job.start_coordinator()

    def keep(self) -> None:
        """Starts it again if it has died."""
        process = self._job.coordinator
        if process is None or process.poll() is None:
            return
        if time.monotonic() - self._started_s > RESTART_INTERVAL_S:
            try:
                self.start()
            except RunFailed:
                return  # the next attempt comes; training goes on without

    def decide_without(self, names: Collection[str]) -> None:
        """Has the others go on without members that have exited for good, where too few are left to decide that.

        Only whoever has seen these processes end may say so.
        """
        try:
            generation = self._ask("/v1/status")["generation"]
            gone = [name for name in (generation or {}).get("seats", ()) if name in names]
            if gone:
                self._ask("/v1/override", {"generation": generation["number"], "drop": gone, "is_sure": True})
        except (OSError, ValueError):
            return  # it is busy, or has decided meanwhile; whoever calls asks again

    def close(self) -> None:
        """Ends it."""
        self._job.close()

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        url = self._job.address_file.read_text(encoding="utf-8").split()[0].replace("ws", "http", 1)
        request = urllib.request.Request(
            url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=ANSWER_TIMEOUT_S) as answer:
            return json.load(answer)
