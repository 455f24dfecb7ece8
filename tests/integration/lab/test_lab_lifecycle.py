"""A lab leaves nothing behind: after `down`, after Ctrl-C, after a crash, as root and without."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from farstep.lab.fabric.places import FOLDER_VARIABLE
from tests.integration.lab.lab_kit import (
    WAIT_S,
    Traces,
    as_ordinary_user,
    farstep,
    lab_name,
    needs_lab,
    traces,
    wait_for,
    why_no_rootless_lab,
)

pytestmark = [pytest.mark.netns, needs_lab]

FABRIC = """
[fabric]
kind = "leaf-spine"
planes = 2
leaves = 2
spines = 2
nics_per_leaf = 2
port_gbps = 0.1
"""
LONG = f"{FABRIC}link_latency_ns = 1e6\n"
"""Links that a process delays, where the kernel cannot."""

FAULTS = """
[[faults]]
kind = "link_down"
link = "t0/p0/0-t1/p0/1"
at_s = 0.0
silent = false

[[faults]]
kind = "link_down"
link = "t0/p1/0-t1/p1/1"
at_s = 3600.0
"""


class Place:
    """A folder for records and files, and what is on the machine before anything is built."""

    def __init__(self, folder: Path, *, before: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.before = before
        self.name = lab_name("life")
        self.files = folder / "files"
        self.files.mkdir()
        (self.files / "fabric.toml").write_text(FABRIC)
        (self.files / "long.toml").write_text(LONG)
        (self.files / "script.toml").write_text(FAULTS)
        self.labs = folder / "labs"
        self.environment = {**os.environ, FOLDER_VARIABLE: str(self.labs)}
        self.at_first = self.traces()

    def traces(self) -> Traces:
        return traces(self.name, self.labs)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return farstep(
            "lab",
            *arguments,
            before=self.before,
            env=self.environment,
            cwd=self.files,
            start_new_session=True,
        )

    def run(self, *arguments: str, status: int = 0) -> str:
        process = self.start(*arguments)
        printed, said = process.communicate(timeout=WAIT_S)
        assert process.returncode == status, printed + said
        return printed + said

    def up(self, fabric: str = "fabric.toml", name: str | None = None) -> None:
        self.run("up", fabric, "--name", name or self.name)

    def check_nothing_is_left(self) -> None:
        wait_for(
            lambda: self.traces() == self.at_first, f"nothing of {self.name} is left, but {self.traces()}"
        )


@contextlib.contextmanager
def new_place(*before: str) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="fs-lab-"))
    place = Place(folder, before=before)
    for path in (folder, place.files):
        path.chmod(0o777)
    try:
        yield place
    finally:
        place.start("down", "--name", place.name).communicate(timeout=WAIT_S)
        shutil.rmtree(folder)


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        yield place


@pytest.mark.parametrize("fabric", ["fabric.toml", "long.toml"])
def test_down_leaves_nothing(place: Place, fabric: str) -> None:
    place.up(fabric)
    assert place.traces() != place.at_first
    left_running = place.start("run", "--name", place.name, "--nic", "3", "--", "sleep", "3601")
    wait_for(lambda: "; 1 process runs" in place.run("status", "--name", place.name), "the command runs")
    place.run("down", "--name", place.name)
    left_running.communicate(timeout=WAIT_S)
    assert left_running.returncode != 0
    place.check_nothing_is_left()


@pytest.mark.parametrize("fabric", ["fabric.toml", "long.toml"])
def test_ctrl_c_while_it_is_built_leaves_nothing(place: Place, fabric: str) -> None:
    process = place.start("up", fabric, "--name", place.name)
    wait_for(lambda: bool(place.traces().namespaces), "the first namespace")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to all in the foreground
    printed, said = process.communicate(timeout=WAIT_S)
    if process.returncode == 0:  # it was quicker
        place.run("down", "--name", place.name)
    else:
        assert (process.returncode, printed) == (130, ""), said
        assert said == "error: stopped\n"
    place.check_nothing_is_left()


def test_ctrl_c_ends_a_lab_that_was_asked_to_hold(place: Place) -> None:
    process = place.start("up", "fabric.toml", "--name", place.name, "--hold")
    assert process.stdout is not None
    wait_for(lambda: "Ctrl-C takes it down" in process.stdout.readline(), "the lab is up")  # type: ignore[union-attr]
    os.killpg(process.pid, signal.SIGINT)
    printed, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, printed, said) == (0, f"lab {place.name} is down\n", "")
    place.check_nothing_is_left()


@pytest.mark.parametrize("fabric", ["fabric.toml", "long.toml"])
def test_down_clears_away_what_a_crash_has_left(place: Place, fabric: str) -> None:
    process = place.start("up", fabric, "--name", place.name)
    wait_for(lambda: bool(place.traces().namespaces), "the first namespace")
    process.kill()
    process.communicate(timeout=WAIT_S)
    assert place.traces().namespaces
    said = place.run("run", "--name", place.name, "--", "true", status=4)
    assert "farstep lab down" in said
    place.run("down", "--name", place.name)
    place.check_nothing_is_left()


def test_down_finds_namespaces_of_a_lab_whose_record_is_lost(place: Place) -> None:
    place.up()
    shutil.rmtree(place.labs)
    said = place.run("up", "fabric.toml", "--name", place.name, status=4)
    assert "not recorded here" in said
    assert "of which nothing was recorded" in place.run("down", "--name", place.name)
    place.check_nothing_is_left()


def test_a_lab_whose_keeper_has_died_says_so_and_comes_down(place: Place) -> None:
    place.up("long.toml")
    record = json.loads((place.labs / place.name / "record.json").read_text())
    os.kill(record["keeper_pid"], signal.SIGKILL)
    wait_for(lambda: "has lost its keeper" in place.run("status", "--name", place.name), "it is noticed")
    place.run("down", "--name", place.name)
    place.check_nothing_is_left()


def test_ctrl_c_mends_what_a_script_has_broken(place: Place) -> None:
    place.up()
    process = place.start("fault", "script.toml", "--name", place.name)
    assert process.stdout is not None
    wait_for(lambda: "down, signalled" in process.stdout.readline(), "the first fault")  # type: ignore[union-attr]
    assert "t0/p0/0-t1/p0/1: down, signalled" in place.run("status", "--name", place.name)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, said) == (130, "error: stopped\n")
    assert "down" not in place.run("status", "--name", place.name)


def test_what_a_killed_script_has_broken_can_be_mended(place: Place) -> None:
    place.up()
    process = place.start("fault", "script.toml", "--name", place.name)
    assert process.stdout is not None
    wait_for(lambda: "down, signalled" in process.stdout.readline(), "the first fault")  # type: ignore[union-attr]
    process.kill()
    process.communicate(timeout=WAIT_S)
    assert "down, signalled" in place.run("status", "--name", place.name)
    assert "restored" in place.run("fault", "--clear", "--name", place.name)
    table = json.loads(place.run("status", "--json", "--name", place.name))[0]
    assert all(link["fault"] is None for link in table["links"].values())


def test_several_labs_do_not_meet(place: Place) -> None:
    other = f"{place.name}b"
    place.up()
    try:
        place.up(name=other)
        said = place.run("up", "fabric.toml", "--name", place.name, status=4)
        assert f'lab "{place.name}" exists' in said
        assert "which lab?" in place.run("run", "--", "true", status=4)
        inside = "import socket; box = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n"
        ask = "box.settimeout(20); box.connect(('fd00:fab:0:1::2', 7)); box.send(b'?'); box.recv(9)"
        answer = (
            "box.bind(('::', 7)); print('ready', flush=True); _, who = box.recvfrom(9); box.sendto(b'!', who)"
        )
        echo = place.start("run", "--name", other, "--nic", "3", "--", sys.executable, "-c", inside + answer)
        assert echo.stdout is not None
        assert echo.stdout.readline() == "ready\n"
        place.run("run", "--name", place.name, "--", sys.executable, "-c", inside + ask, status=1)
        place.run("down", "--name", place.name)
        place.run("run", "--name", other, "--", sys.executable, "-c", inside + ask)
        assert echo.communicate(timeout=WAIT_S) == ("", "")
    finally:
        place.run("down", "--name", other)
    place.check_nothing_is_left()


def test_a_command_gets_its_arguments_its_folder_and_its_end(place: Place) -> None:
    place.up()
    at = ("run", "--name", place.name)
    assert place.run(*at, "--", "pwd").strip() == str(place.files)
    shown = place.run(*at, "--nic", "2", "--", "sh", "-c", 'echo $FARSTEP_LAB_NIC "$0" "$1"', "-x", "a  b")
    assert shown == "2 -x a  b\n"
    assert place.run(*at, "--", "ls", "/sys/class/net").split() == ["lo", "p0", "p1"]
    assert place.run(*at, "--", "sh", "-c", "exit 7", status=7) == ""
    assert place.run(*at, "--", "sh", "-c", "kill -TERM $$", status=143) == ""
    everywhere = place.run(
        *at, "--nic", "all", "--", "sh", "-c", "echo at $FARSTEP_LAB_NIC; exit $FARSTEP_LAB_NIC", status=1
    )
    assert sorted(everywhere.splitlines()) == [f"nic {nic:3} | at {nic}" for nic in range(4)]
    table = json.loads(
        Path(place.run(*at, "--", "sh", "-c", "echo $FARSTEP_LAB_ADDRESSES").strip()).read_text()
    )
    assert table["hosts"][3]["ports"][1] == {
        "plane": 1,
        "interface": "p1",
        "address": "fd00:fab:2:1::2",
        "arrival": "fcbb:bbbb:c401::",
    }


@pytest.mark.parametrize("where", ["0", "all"])
def test_ctrl_c_ends_commands_at_every_nic(place: Place, where: str) -> None:
    place.up()
    process = place.start("run", "--name", place.name, "--nic", where, "--", "sleep", "3601")
    count = 1 if where == "0" else 4
    wanted = "; 1 process runs" if count == 1 else f"; {count} processes run"
    wait_for(lambda: wanted in place.run("status", "--name", place.name), "they run")
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, said) == (130, "error: stopped\n")
    assert "; nothing runs" in place.run("status", "--name", place.name)


# ---- without root -----------------------------------------------------------------------------------------------


@pytest.fixture
def ordinary() -> Iterator[Place]:
    reason = why_no_rootless_lab()
    if reason is not None:
        pytest.skip(reason)
    with new_place(*as_ordinary_user()) as place:
        yield place


@pytest.mark.parametrize("fabric", ["fabric.toml", "long.toml"])
def test_a_lab_without_root_works_and_leaves_nothing(ordinary: Place, fabric: str) -> None:
    ordinary.up(fabric)
    at = ("run", "--name", ordinary.name)
    assert ordinary.run(*at, "--", "ls", "/sys/class/net").split() == ["lo", "p0", "p1"]
    assert ordinary.run(*at, "--", "pwd").strip() == str(ordinary.files)
    inside = "import socket; box = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\nbox.settimeout(20)\n"
    receive = (
        "box.setsockopt(17, 102, 1); box.bind(('::', 7)); print('ready', flush=True); print(box.recv(9))"
    )
    send = "box.setsockopt(17, 101, 1); box.sendto(b'hello', ('fcbb:bbbb:2400:4401:2401:c401::', 7))"
    listening = ordinary.start(*at, "--nic", "3", "--", sys.executable, "-c", inside + receive)
    assert listening.stdout is not None
    assert listening.stdout.readline() == "ready\n"
    assert "; 1 process runs" in ordinary.run("status", "--name", ordinary.name)
    ordinary.run(*at, "--", sys.executable, "-c", inside + send)
    assert listening.communicate(timeout=WAIT_S)[0] == "b'hello'\n"
    script = ordinary.run("fault", "script.toml", "--for-s", "0.05", "--name", ordinary.name)
    assert "down, signalled   t0/p0/0-t1/p0/1" in script
    left_running = ordinary.start(*at, "--", "sleep", "3601")
    wait_for(lambda: "; 1 process runs" in ordinary.run("status", "--name", ordinary.name), "it runs")
    ordinary.run("down", "--name", ordinary.name)
    left_running.communicate(timeout=WAIT_S)
    ordinary.check_nothing_is_left()


def test_a_crash_without_root_takes_all_with_it_but_the_record(ordinary: Place) -> None:
    ordinary.up()
    record = json.loads((ordinary.labs / ordinary.name / "record.json").read_text())
    os.kill(record["keeper_pid"], signal.SIGKILL)
    wait_for(
        lambda: "has lost its keeper" in ordinary.run("status", "--name", ordinary.name), "it is noticed"
    )
    ordinary.run("down", "--name", ordinary.name)
    ordinary.check_nothing_is_left()


def test_a_crash_while_it_is_built_without_root_leaves_no_process(ordinary: Place) -> None:
    process = ordinary.start("up", "fabric.toml", "--name", ordinary.name)
    record = ordinary.labs / ordinary.name / "record.json"
    wait_for(lambda: record.exists() and json.loads(record.read_text())["keeper_pid"] is not None, "a keeper")
    process.kill()
    process.communicate(timeout=WAIT_S)
    wait_for(lambda: ordinary.traces().processes == ordinary.at_first.processes, "the keeper ends too")
    ordinary.run("down", "--name", ordinary.name)
    ordinary.check_nothing_is_left()
