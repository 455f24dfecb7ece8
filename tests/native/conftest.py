"""Compiles native drivers ahead, on a core that other tests leave idle."""

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

NICE = 15
"""Compilers give way to the tests that run meanwhile."""


class Workshop:
    """Compiles each program once, in the background from when it is first named."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="farstep-drivers-"))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="compiler")
        self._jobs: dict[Path, Future[subprocess.CompletedProcess[str]]] = {}

    def order(self, source: Path, command: list[str]) -> None:
        """Begins to compile a source; `command` lacks the output."""
        if source not in self._jobs:
            full = ["nice", "-n", str(NICE), *command, "-o", str(self.program(source))]
            self._jobs[source] = self._pool.submit(subprocess.run, full, capture_output=True, text=True)

    def program(self, source: Path) -> Path:
        """Where the program of a source goes."""
        return self._folder / source.stem

    def wait(self, source: Path) -> subprocess.CompletedProcess[str]:
        """Returns how compiling a source has ended."""
        return self._jobs[source].result()

    def close(self) -> None:
        """Drops what has not begun, and all programs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begins to compile what the tests that were chosen will need, unless several workers would do so at once."""
    from tests.native.test_sanitized import compile_command, find_compiler

    wanted = [item for item in session.items if item.fspath.basename == "test_sanitized.py"]
    sources = [item.callspec.params["driver"] for item in wanted if hasattr(item, "callspec")]
    compiler = find_compiler()
    if not sources or compiler is None or session.config.option.collectonly:
        return
    workshop = Workshop()
    session.config.stash[WORKSHOP] = workshop
    session.config.add_cleanup(workshop.close)
    if os.environ.get("PYTEST_XDIST_WORKER") is None:
        for source in sources:
            workshop.order(source, compile_command(compiler, source))


WORKSHOP = pytest.StashKey[Workshop]()


@pytest.fixture(scope="session")
def workshop(request: pytest.FixtureRequest) -> Workshop:
    """What compiles the drivers of this session."""
    return request.config.stash[WORKSHOP]
