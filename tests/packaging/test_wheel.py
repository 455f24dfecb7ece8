"""The wheel, built with isolation, in an environment that holds nothing else and finds no compiler."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parent.parent.parent

LOOPBACK_WRITE = """
import numpy as np
from farstep.engine import Endpoint, PortConfig

source, target = np.arange(100_000, dtype=np.float32), np.zeros(100_000, dtype=np.float32)
with Endpoint([PortConfig()], name="a") as a, Endpoint([PortConfig()], name="b") as b:
    to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
    to_b.connect(to_a.descriptor)
    to_a.connect(to_b.descriptor)
    mine, theirs = a.register(source), b.register(target)
    to_b.write(mine, 0, source.nbytes, theirs.remote, 0, immediate=7)
    assert to_a.wait_immediate(timeout_s=10) == 7
assert (source == target).all()
print("arrived")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("FARSTEP_WHEEL"):  # built by `make wheel` just before
        return Path(given)
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--config-settings", f"build-dir={folder / 'build'}"),
            *("--wheel-dir", str(folder), str(ROOT)),
        ],
        check=True,
    )
    (found,) = folder.glob("farstep-*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--only-binary", ":all:", "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True
    )
    return folder / "bin"


def run(environment: Path, *command: str) -> str:
    """Runs a program of the environment with nothing else on the path."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CXX", "CC"))
    }
    variables["PATH"] = str(environment)
    program = [str(environment / command[0]), *command[1:]]
    done = subprocess.run(
        program, cwd=environment, env=variables, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"farstep", next(top for top in tops if top.endswith(".dist-info"))}
    assert any(name.startswith("farstep/_native.") and name.endswith(".so") for name in names)
    for name in ("_native.pyi", "py.typed", "observe/report_page.html"):
        assert f"farstep/{name}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_command_runs(environment: Path) -> None:
    import farstep

    assert run(environment, "farstep", "--version").strip() == f"farstep {farstep.__version__}"
    assert "train" in run(environment, "farstep", "--help")


def test_the_engine_carries_a_message(environment: Path) -> None:
    assert run(environment, "python", "-c", LOOPBACK_WRITE).strip() == "arrived"


def test_training_says_what_is_missing(environment: Path) -> None:
    variables = {"PATH": str(environment)}
    done = subprocess.run(
        [str(environment / "farstep"), "train", "--steps", "1"],
        cwd=environment,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "farstep[train]" in done.stderr
