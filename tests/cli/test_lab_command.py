"""`farstep lab` without a lab: what a user gets wrong is told before anything is built, and in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farstep.cli.errors import CommandError
from farstep.cli.lab import app


@pytest.fixture(autouse=True)
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARSTEP_LAB_FOLDER", str(tmp_path / "labs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "labs"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("up", "none.toml"), 2, "none.toml: cannot be read: No such file or directory"),
        (("up", "lab-4", "--mtu", "99"), 2, "mtu = 99: must be a whole number from 1500 to 65000"),
        (("up", "lab-4", "--delay", "some"), 2, 'delay = "some": valid: auto, netem, tunnel, none'),
        (("up", "lab-4", "--name", "a/b"), 2, 'name = "a/b": valid: 1 to 24 of a-z, 0-9 and _'),
        (("up", "mrc-512"), 2, "fabric: 896 NICs and switches: a lab has 512 at most"),
        (("down",), 4, "there is no lab"),
        (("down", "--name", "none"), 4, 'no lab "none"; there is: none'),
        (("run", "--", "true"), 4, "there is no lab"),
        (("fault", "script.toml"), 4, "there is no lab"),
        (("fault",), 2, "SCRIPT.TOML or --clear: give one of them"),
        (("fault", "script.toml", "--clear"), 2, "SCRIPT.TOML or --clear: give one of them"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    labs: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    with pytest.raises(CommandError) as caught:
        app(list(arguments), standalone_mode=False)
    assert (str(caught.value), caught.value.status) == (said, status)
    assert not labs.exists()


def test_a_mistake_ends_the_command_with_its_status(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "farstep", "lab", "up", "none.toml"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: none.toml: cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [(("status",), "no lab is up\n"), (("status", "--json"), "[]\n"), (("down", "--all"), "")],
)
def test_no_lab_is_no_mistake(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], printed: str
) -> None:
    app(list(arguments), standalone_mode=False)
    assert capsys.readouterr().out == printed
