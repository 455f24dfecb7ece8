"""Compiles every native driver with AddressSanitizer and UndefinedBehaviorSanitizer and runs it.

A driver is a file in native/fuzz or native/tests with `int main(int argc, char** argv)` that takes a seed and
a number of iterations, exits 0 when all is well, and otherwise prints the seed and how to reproduce.
"""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = sorted([*(ROOT / "native/fuzz").glob("*.cpp"), *(ROOT / "native/tests").glob("*.cpp")])
COMPILE = [
    "-std=c++20",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-pthread",
    f"-I{ROOT / 'native/include'}",
]
SEEDS = [1, 20_260]
DEFAULT_ITERATIONS = 2_000
ITERATIONS = {"wire_fuzz": 500_000, "crc32_test": 1_000}
RUN_TIMEOUT_S = 90
SLOW = ("sim_", "endpoint_fuzz", "protection_fuzz")
"""Drivers that take long to compile: the simulator's, whose engine others of the default suite run too, and targets of
`make fuzz`, whose code hostile_test and packet_protection_test run."""


def find_compiler() -> str | None:
    """Returns the compiler of this machine, None if there is none."""
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")


def compile_command(compiler: str, driver: Path) -> list[str]:
    """Returns how a driver is compiled, without the place of the program."""
    return [compiler, *COMPILE, str(driver)]


@pytest.fixture(scope="session")
def compiler():
    found = find_compiler()
    if found is None:
        pytest.skip("no C++ compiler: neither g++ nor c++ is on PATH")
    return found


@pytest.mark.parametrize(
    "driver",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem.startswith(SLOW) else [])
        for path in DRIVERS
    ],
)
@pytest.mark.timeout(300)
def test_driver_runs_clean_under_sanitizers(driver, compiler, workshop):
    command = compile_command(compiler, driver)
    workshop.order(driver, command)
    built = workshop.wait(driver)
    program = workshop.program(driver)
    assert built.returncode == 0, f"{' '.join(command)}\n{built.stderr}"

    def run(seed: int) -> tuple[int, list[str], subprocess.CompletedProcess[str]]:
        arguments = [str(program), str(seed), str(ITERATIONS.get(driver.stem, DEFAULT_ITERATIONS))]
        return (
            seed,
            arguments,
            subprocess.run(arguments, capture_output=True, text=True, timeout=RUN_TIMEOUT_S),
        )

    with ThreadPoolExecutor(len(SEEDS)) as pool:
        ends = list(pool.map(run, SEEDS))
    for seed, arguments, ran in ends:
        reproduce = f"{' '.join(command)} -o {program} && {' '.join(arguments)}"
        assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\nseed {seed}\nreproduce: {reproduce}"


def test_there_are_drivers_to_run():
    assert {"wire_fuzz", "crc32_test"} <= {driver.stem for driver in DRIVERS}
