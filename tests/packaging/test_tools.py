"""The tools that the Makefile and lint use, and what the repository's files promise each other."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.requirements import requirements
from tools.tidy import findings

ROOT = Path(__file__).resolve().parent.parent.parent


def pyproject() -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert match is not None
    return match[0].lower()


def repository_with(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def test_requirements_are_those_of_pyproject() -> None:
    path = ROOT / "pyproject.toml"
    assert any(line.startswith("nanobind") for line in requirements("build", path))
    assert any(line.startswith("numpy") for line in requirements("run", path))
    assert any(line.startswith("torch") for line in requirements("train", path))
    with pytest.raises(KeyError):
        requirements("no-such-extra", path)


def test_every_direct_dependency_but_ray_is_pinned() -> None:
    path = ROOT / "pyproject.toml"
    wanted = {name_of(line) for part in ("build", "run", "train", "dev") for line in requirements(part, path)}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {name_of(line) for line in lines if line and not line.startswith("#")}
    assert wanted - pinned == set()
    assert all("==" in line for line in lines if line and not line.startswith("#"))


def test_the_package_and_its_metadata_have_one_version() -> None:
    import farstep

    assert pyproject()["project"]["version"] == farstep.__version__
    assert f"## {farstep.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_make_help_lists_every_target() -> None:
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = set(re.findall(r"make ([a-z-]+)", done.stdout))
    assert targets >= {"demo", "test", "test-slow", "lint", "bench", "docs", "wheel", "clean", "help"}


@pytest.mark.parametrize(
    ("name", "text", "finding"),
    [
        ("src/a/utils.py", "", "name a module after the noun"),
        ("src/a/long.py", "x = 1\n" * 601, "601 lines, at most 600"),
        ("src/a/f.py", "def f():\n" + "    x = 1\n" * 70, "f has 71 lines, at most 70"),
        ("src/a/p.py", "print('x')\n", "print belongs into"),
        ("docs/a.md", "see /" + "root/x\n", "is a path of one machine"),
        ("docs/a.md", "cp /" + "home/ann/x .\n", "is a path of one machine"),
        ("src/a/t.py", "# TO" + "DO: later\n", "finish it"),
    ],
)
def test_tidy_finds(name: str, text: str, finding: str, tmp_path: Path) -> None:
    found = list(findings(repository_with(tmp_path, {name: text})))
    assert len(found) == 1
    assert found[0].startswith(name)
    assert finding in found[0]


def test_tidy_lets_good_files_pass(tmp_path: Path) -> None:
    files = {
        "src/a/cli/say.py": "print('x')\n",
        "tests/test_x.py": "print('x')\n",
        "src/a/network.py": "def f():\n" + "    x = 1\n" * 69,
        "docs/a.md": "work/root/opt are words; https://example.org/work/x is a link\n",
        "picture.bin": "",
    }
    root = repository_with(tmp_path, files)
    (root / "picture.bin").write_bytes(b"\xff\xfe\x00")
    assert list(findings(root)) == []


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("farstep", ("numpy", "torch", "pydantic", "rich", "farstep._native")),
        ("farstep.cli", ("torch", "plotly", "numpy")),
        ("farstep.observe.events", ("torch", "plotly", "numpy", "rich")),
        ("farstep.observe.report", ("torch", "plotly", "numpy")),
        ("farstep.engine", ("torch", "plotly", "rich")),
        ("farstep.collectives", ("torch",)),
        ("farstep.fabric", ("torch", "plotly", "rich")),
        ("farstep.lab", ("torch", "plotly", "rich")),
        ("farstep.train", ("torch", "plotly")),
    ],
)
def test_importing_a_room_does_not_load_what_it_may_never_need(module: str, banned: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print([m for m in {banned!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
