"""`farstep perf` as a user runs it: two commands, a report, and how it ends."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from farstep.cli.app import app
from farstep.cli.errors import CommandError, translated

WAIT_S = 60.0
COMMAND = [sys.executable, "-m", "farstep", "perf"]


@contextlib.contextmanager
def server(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server at a free port of 127.0.0.1, and that port."""
    command = [*COMMAND, "server", "--bind", "127.0.0.1", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said.startswith("listening at 127.0.0.1:"), said
            yield process, said.strip().rpartition(":")[2]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=WAIT_S)


def client(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "client", *options], capture_output=True, text=True, timeout=WAIT_S, check=False
    )


def test_reports_for_people_and_for_programs():
    with server() as (_, port):
        done = client("127.0.0.1", "-p", port, "-n", "4M", "-P", "2", "--planes", "2")
        assert done.returncode == 0, done.stderr
        assert "client sends writes of 1,048,576 bytes, 4 in flight, 2 connections, 4.19 MB" in done.stdout
        assert "path mode udp, 2 planes" in done.stdout
        assert "received there: 4.19 MB" in done.stdout
        assert "plane 1: " in done.stdout
        done = client("127.0.0.1", "-p", port, "--latency", "-t", "0.2", "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["latency"]["count"] > 0
        assert report["plan"]["size_bytes"] == 64
        done = client("127.0.0.1", "-p", port, "--bidir", "-n", "1M", "-i", "0")
        assert done.returncode == 0, done.stderr
        assert "sent there and confirmed: 1.05 MB" in done.stdout


def test_ctrl_c_prints_the_summary():
    with server() as (serving, port):
        command = [*COMMAND, "client", "127.0.0.1", "-p", port, "-t", "600", "-i", "0.2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(5)]
            assert lines[-1].startswith("[  0]")
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 130
        assert "sent and confirmed" in rest
        assert "received there" in rest
        assert errors == ""
        assert serving.poll() is None  # and goes on


def test_a_server_ends_after_one_if_told_so():
    with server("--one-off") as (process, port):
        assert client("127.0.0.1", "-p", port, "-n", "1K").returncode == 0
        assert process.wait(WAIT_S) == 0


def test_ctrl_c_ends_a_server():
    with server() as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (
            ("client", "127.0.0.1", "-p", "1"),
            3,
            "cannot reach a server at 127.0.0.1:1 (Connection refused)",
        ),
        (("client", "no.such.host.invalid"), 3, "cannot reach a server at no.such.host.invalid:5211"),
        (("client",), 2, "missing argument 'SERVER'"),
        (("client", "h", "-n", "5X"), 2, "--bytes: '5X': valid: a number of bytes"),
        (("client", "h", "-n", "5", "-t", "1"), 2, "--bytes and --time: one of the two"),
        (("client", "h", "-R", "--bidir"), 2, "--reverse and --bidir: one of the two"),
        (("client", "h", "-l", "0"), 2, "command line: size_bytes = 0: valid: 1 to"),
        (("client", "h", "-L", "-P", "2"), 2, "command line: latency is measured on one connection"),
        (
            ("client", "h", "--path-mode", "x"),
            2,
            "command line: path_mode = 'x': valid: auto, udp, srv6",
        ),
        (("client", "h", "-B", "a b"), 2, "command line: address = 'a b' is not valid"),
        (
            ("client", "h", "--protection", "encrypt"),
            2,
            "--protection encrypt: needs --certs and --name",
        ),
        (("client", "h", "--protection", "x"), 2, "command line: within_site = 'x' is not valid"),
        (("client", "h", "--certs", "d"), 2, "--certs and --name: one needs the other"),
        (("client", "h", "--certs", "none", "--name", "a"), 4, "none/ca.pem is missing"),
        (("server", "-B", "203.0.113.9"), 4, "cannot listen at 203.0.113.9:5211"),
        (("server", "-p", "99999"), 2, "invalid value for '--port'"),
    ],
)
def test_mistakes_end_with_one_line(arguments, status, error, capsys):
    with pytest.raises(CommandError) as caught, translated():
        app(["perf", *arguments], standalone_mode=False)
    assert caught.value.status == status
    assert str(caught.value).startswith(error)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""
