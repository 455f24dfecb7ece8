"""What holds for every test: one thread per process, no deadline per example, and failures that can be repeated."""

import os

import pytest
from hypothesis import settings

# Tests start several processes on few cores; threads of numeric libraries would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# How long an example takes says more about the machine than about the code; pytest-timeout bounds the whole.
settings.register_profile("farstep", deadline=None, print_blob=True)
settings.load_profile("farstep")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """After a failure, says how to run the same tests in the same order again."""
    seed = config.getoption("randomly_seed", None)
    if exitstatus == pytest.ExitCode.TESTS_FAILED and seed is not None:
        terminalreporter.write_line(f'the same order again: make test ARGS="--randomly-seed={seed}"')
