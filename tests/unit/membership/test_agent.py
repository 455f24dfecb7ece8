"""An agent beside a training command: restarts, death certificates, signals, and nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from farstep.membership.agent import Agent


class Told:
    def __init__(self):
        self.dead = []

    def certify_death(self, member_id):
        self.dead.append(member_id)


def agent(script, restarts=0, **environment):
    told = Told()
    said = []
    made = Agent(
        ["sh", "-c", script],
        "a-0",
        environment={**os.environ, **environment},
        witness=told,
        restarts=restarts,
        say=said.append,
        wait_s=(0.01, 0.02),
    )
    return made, told, said


def test_a_command_that_ends_well_ends_the_agent(tmp_path):
    made, told, said = agent(f"printenv FARSTEP_MEMBER_ID > {tmp_path}/id", restarts=3)
    assert made.run() == 0
    assert told.dead == [(tmp_path / "id").read_text().strip()]
    assert told.dead[0].startswith("a-0/")
    assert said == []


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -KILL $$", 137)])
def test_a_command_that_dies_is_started_again(script, status):
    made, told, said = agent(script, restarts=2)
    assert made.run() == status
    assert len(set(told.dead)) == 3
    assert [line.partition("(")[2] for line in said] == ["1 of 2)", "2 of 2)"]


def test_it_counts_anew_for_a_command_that_lived_long(monkeypatch, tmp_path):
    monkeypatch.setattr("farstep.membership.agent.HEALTHY_S", 0.0)
    script = f"echo x >> {tmp_path}/runs; [ $(wc -l < {tmp_path}/runs) -ge 5 ] && exit 0; exit 1"
    made, told, _ = agent(script, restarts=1)
    assert made.run() == 0
    assert len(told.dead) == 5


def test_what_the_command_has_started_ends_with_it(tmp_path):
    made, _, _ = agent(f"sleep 60 & echo $! > {tmp_path}/pid; exit 1")
    made.run()
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_command_that_cannot_be_started_is_an_error():
    made = Agent(["no-such-command"], "a-0", environment={}, witness=Told())
    with pytest.raises(FileNotFoundError):
        made.run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


PROGRAM = """
import os, sys
from farstep.membership.agent import Agent
class Told:
    def certify_death(self, member_id): print("dead", flush=True)
script = "trap 'echo leaving; exit 0' TERM INT; echo up; while :; do sleep 0.05; done"
sys.exit(Agent(["sh", "-c", script], "a-0", environment=os.environ, witness=Told(), restarts=5).run())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_go_to_the_command_and_end_the_agent(number):
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        timer = threading.Timer(10, process.kill)
        timer.start()
        assert process.stdout.read().split() == ["leaving", "dead"]
        timer.cancel()
    assert process.returncode == 0


AGENT = """
import os, sys
from farstep.membership.agent import Agent
class Witness:
    def certify_death(self, member_id):
        pass
sys.exit(Agent(["sh", "-c", sys.argv[1]], "a-0", environment=os.environ, witness=Witness()).run())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
def test_nothing_goes_on_without_its_agent(tmp_path, number):
    # The command has a child of its own, and does not listen to anything.
    script = f"trap '' TERM; sleep 97 & echo $$ $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/ids; wait"
    process = subprocess.Popen([sys.executable, "-c", AGENT, script], start_new_session=True)
    until(lambda: (tmp_path / "ids").exists())
    process.send_signal(number)
    process.wait(20)
    for pid in map(int, (tmp_path / "ids").read_text().split()):
        until(lambda pid=pid: has_gone(pid))


def until(condition):
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def has_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
