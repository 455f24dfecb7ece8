"""Endpoints in processes of their own: killed, interrupted, forked, ended in the middle of everything."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from farstep.engine import ConnectionFailed, Endpoint
from tests.integration.engine_pair import IMPATIENT, WAIT_S, engine_pair

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
from farstep.engine import *
from tests.integration.engine_pair import IMPATIENT, WAIT_S, connect, engine_pair

def say(*words):
    print(*words, flush=True)
"""
PROMPT_S = 3.0
ROOT = Path(__file__).resolve().parents[2]


class Child:
    """A Python process running `body` after the prelude; lines of its output are read with `expect`."""

    def __init__(self, body: str) -> None:
        path = os.pathsep.join([str(ROOT), *sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + textwrap.dedent(body)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def expect(self, start: str) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line.startswith(start), f"{line!r} instead of {start!r}: {self.end()[1] if not line else ''}"
        return line[len(start) :].strip()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self, timeout_s: float = WAIT_S) -> tuple[int, str]:
        """Waits for its end; returns exit code and what it said on standard error."""
        _, errors = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, errors

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def run(body: str, timeout_s: float = WAIT_S) -> tuple[int, str]:
    with Child(body) as child:
        return child.end(timeout_s)


# ---- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", ["to_b.wait_immediate(None)", "write.wait(None)", "write.future().result()"])
def test_ctrl_c_interrupts_a_wait(wait):
    body = f"""
    a, b = Endpoint(["127.0.0.1"]), Endpoint(["127.0.0.1"])
    to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
    to_b.connect(to_a.descriptor)  # the other end never does
    region, landing = a.register(bytes(10)), b.register(bytearray(10))
    write = to_b.write(region, 0, 10, landing.remote, 0)
    try:
        say("waiting")
        {wait}
    except KeyboardInterrupt:
        say("interrupted")
    """
    with Child(body) as child:
        child.expect("waiting")
        time.sleep(0.2)
        start_s = time.monotonic()
        child.process.send_signal(signal.SIGINT)
        child.expect("interrupted")
        assert time.monotonic() - start_s < PROMPT_S
        assert child.end() == (0, "")


def serve(body: str, profile: str = "IMPATIENT") -> str:
    """A child with an endpoint, connected to ours through descriptors in hexadecimal on its pipes."""
    return (
        f"""
    endpoint = Endpoint(["127.0.0.1"], name="child", profile={profile})
    memory = np.zeros(64 << 20, np.uint8)
    region = endpoint.register(memory)
    connection = endpoint.create_connection(peer_name="parent")
    say("descriptor", connection.descriptor.hex())
    say("region", *region.remote)
    connection.connect(bytes.fromhex(sys.stdin.readline()))
    say("connected")
    """
        + body
    )


def join(child: Child, endpoint: Endpoint):
    from farstep.engine import RemoteRegion

    peer = bytes.fromhex(child.expect("descriptor"))
    rkey, length = child.expect("region").split()
    connection = endpoint.create_connection(peer_name="child")
    child.tell(connection.descriptor.hex())
    child.expect("connected")
    connection.connect(peer)
    return connection, RemoteRegion(int(rkey), int(length))


def test_a_killed_peer_is_noticed_within_the_retry_budget():
    with Child(serve("connection.wait_immediate(None)")) as child, Endpoint(profile=IMPATIENT) as endpoint:
        connection, remote = join(child, endpoint)
        region = endpoint.register(np.ones(64 << 20, np.uint8))
        writes = [connection.write(region, 0, 64 << 20, remote, 0) for _ in range(50)]
        writes[0].wait(WAIT_S)
        child.process.kill()
        killed_s = time.monotonic()
        with pytest.raises(ConnectionFailed, match="to 'child': no path to the peer answers any more"):
            writes[-1].wait(WAIT_S)
        assert time.monotonic() - killed_s < PROMPT_S
        assert sum(write.exception() is None for write in writes) < 50


def test_a_peer_that_exits_says_so():
    with Child(serve("sys.exit(0)")) as child, Endpoint(profile=IMPATIENT) as endpoint:
        connection, _ = join(child, endpoint)
        with pytest.raises(ConnectionFailed, match="to 'child': the peer closed it"):
            connection.wait_immediate(WAIT_S)
        assert child.end() == (0, "")


# ---- ends of the interpreter -----------------------------------------------------------------------------------------

BUSY = """
a, b = Endpoint(["127.0.0.1"] * 2), Endpoint(["127.0.0.1"] * 2)
to_b, to_a = connect(a, b)
source, target = np.ones(64 << 20, np.uint8), np.zeros(64 << 20, np.uint8)
region, landing = a.register(source), b.register(target)
writes = [to_b.write(region, 0, 64 << 20, landing.remote, 0) for _ in range(100)]
writes[0].wait(WAIT_S)
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise RuntimeError('by intent')", 1),
        ("os._exit(4)", 4),
        ("del a, b, to_b, to_a, region, landing, writes", 0),
        ("a.close(); b.close()", 0),
        ("writes[-1].add_done_callback(lambda _: None)", 0),
    ],
)
def test_an_interpreter_ends_with_a_transfer_running(end, code):
    got, errors = run(BUSY + end)
    assert got == code, errors
    assert errors == "" or "by intent" in errors


def test_an_interpreter_ends_with_threads_waiting():
    waiting = """
for _ in range(4):
    threading.Thread(target=to_b.wait_immediate, daemon=True).start()
    threading.Thread(target=writes[-1].wait, daemon=True).start()
threading.excepthook = lambda *_: None
time.sleep(0.1)
"""
    for _ in range(3):
        assert run(BUSY + waiting) == (0, "")


def test_an_interpreter_ends_once_a_thread_has_closed_its_endpoint():
    body = """
        endpoint = Endpoint(["127.0.0.1"])
        native = endpoint._native
        begun = threading.Event()

        class Slow:
            def close(self):
                begun.set()
                time.sleep(0.3)
                native.close()
                say("closed")

        endpoint._native = Slow()
        threading.Thread(target=endpoint.close, daemon=True).start()
        begun.wait()
    """
    with Child(body) as child:
        child.expect("closed")
        assert child.end() == (0, "")


def test_a_fork_leaves_the_endpoint_to_the_parent():
    body = """
threading.Thread(target=to_b.wait_immediate, daemon=True).start()  # somebody waits at the moment of the fork
threading.excepthook = lambda *_: None
time.sleep(0.05)
ports = len(os.listdir("/proc/self/fd"))
child = os.fork()
if child == 0:
    assert len(os.listdir("/proc/self/fd")) < ports - 20, "the child lets go of the sockets"
    def refuse(call):
        try:
            call()
        except EndpointClosed as error:
            assert "after fork" in str(error), error
        else:
            raise AssertionError(call)
    for call in (
        lambda: a.stats(), lambda: a.register(b"x"), lambda: a.create_connection(), lambda: a.take_path_events(),
        lambda: to_b.write(region, 0, 1, landing.remote, 0), lambda: to_b.wait_immediate(1), lambda: to_b.stats(),
        lambda: to_b.poll_immediate(), lambda: writes[-1].wait(1), lambda: to_b.connect(to_a.descriptor),
    ):
        refuse(call)
    assert isinstance(writes[-1].exception(), EndpointClosed)
    assert not to_b.is_open
    to_b.abort("no effect"); to_b.close(); region.close(); a.close()
    own, other = Endpoint(["127.0.0.1"]), Endpoint(["127.0.0.1"])
    there, back = connect(own, other)
    source, landing = own.register(b"y"), other.register(bytearray(1))
    there.write(source, 0, 1, landing.remote, 0).wait(WAIT_S)
    sys.exit(7)
pid, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
writes[-1].wait(WAIT_S)
assert np.array_equal(source, target)
"""
    got, errors = run(BUSY.replace("range(100)", "range(15)") + body, 60)
    assert (got, errors) == (0, "")


# ---- the thread ------------------------------------------------------------------------------------------------------


def test_a_thread_that_hogs_the_interpreter_does_not_slow_a_transfer():
    # Both ends live in children; the hog holds the GIL of the sender's process for whole switch intervals.
    body = serve(
        """
    sys.setswitchinterval(0.5)
    hog_until = 0.0
    def hog():
        while time.monotonic() < hog_until:
            sum(range(1000))
    for line in sys.stdin:
        command, rkey, length = line.split()
        remote = RemoteRegion(int(rkey), int(length))
        if command == "hog":
            hog_until = time.monotonic() + 30
        start = time.monotonic()
        writes = [connection.write(region, 0, 32 << 20, remote, 0) for _ in range(8)]
        if command == "hog":
            while not writes[-1].done():  # pure Python all the time: never blocks, so never gives the GIL up
                sum(range(2000))
        else:
            writes[-1].wait(30)
        say("took", time.monotonic() - start)
    """,
        profile="None",
    )
    with Child(body) as child, Endpoint(["127.0.0.1"]) as endpoint:
        _, _ = join(child, endpoint)
        landing = endpoint.register(np.zeros(32 << 20, np.uint8))
        times = {"calm": [], "hog": []}
        for command in ("calm", "hog", "calm", "hog", "calm", "hog"):
            child.tell(f"{command} {landing.remote.rkey} {landing.remote.length_bytes}")
            times[command].append(float(child.expect("took")))
    assert min(times["hog"]) < 5 * min(times["calm"]) + 0.2, times


def test_an_idle_endpoint_costs_no_processor_time():
    with engine_pair(["127.0.0.1"] * 4) as pair:
        pair.send(b"x" * 1000)
        time.sleep(0.3)
        before = [e.stats().thread_cpu_ns for e in (pair.a, pair.b)]
        start_s = time.monotonic()
        time.sleep(2.0)
        elapsed_ns = (time.monotonic() - start_s) * 1e9
        after = [e.stats().thread_cpu_ns for e in (pair.a, pair.b)]
        for first, last in zip(before, after, strict=True):
            assert (last - first) / elapsed_ns < 0.01


def test_endpoints_that_come_and_go_leave_nothing_behind():
    def facts() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    with engine_pair() as pair:
        pair.send(b"warm")
    gc.collect()
    before = facts()
    for _ in range(50):
        with engine_pair(["127.0.0.1"]) as pair:
            pair.send(b"x" * 100)
    descriptors, threads = facts()
    assert threads <= before[1]
    assert descriptors <= before[0] + 100, "one per endpoint may wait for the garbage collector, no socket"
    gc.collect()
    assert facts()[0] <= before[0]


def test_a_port_that_cannot_be_opened_leaves_nothing_behind():
    from farstep.engine import EngineError

    gc.collect()
    with Endpoint(["127.0.0.1"]) as taken:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(EngineError, match=r"cannot open the ports .*in use"):
                Endpoint(["127.0.0.1", f"127.0.0.1:{taken.ports[0][1]}"])
        assert len(os.listdir("/proc/self/fd")) <= before
    assert "farstep-loop" not in {t.name for t in threading.enumerate()}
