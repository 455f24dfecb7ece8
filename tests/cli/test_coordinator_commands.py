"""Commands around a coordinator as users meet them: starting it, asking it, steering a run, joining one."""

import contextlib
import datetime
import io
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest import mock

import pytest

from farstep.cli import main
from farstep.cli.control import _in_words as in_words
from farstep.cli.members import printable
from farstep.coordinator import certificates
from farstep.coordinator.certificates import make_certificates
from tests.integration.coordinator.processes import free_port, wait_until
from tests.integration.coordinator.served import Served


def farstep(*arguments, **environment):
    """Runs the command in this process, as starting Python takes longest of all."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("FARSTEP_")}
    variables |= {"COLUMNS": "100", **{key: str(value) for key, value in environment.items()}}
    out, errors = io.StringIO(), io.StringIO()
    command = ["farstep", *map(str, arguments)]
    with (
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(sys, "argv", command),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return subprocess.CompletedProcess(command, ended.value.code, out.getvalue(), errors.getvalue())


def fails(done, status, *texts):
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    for text in texts:
        assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    make_certificates(folder, ["a-0", "b-0"])
    return folder


@pytest.fixture(scope="module")
def served(pki, tmp_path_factory):
    made = Served(pki, tmp_path_factory.mktemp("served"))
    with contextlib.closing(made), contextlib.ExitStack() as stack:
        members = [stack.enter_context(contextlib.closing(made.member(name))) for name in ("a-0", "b-0")]
        members[0].wait_generation(0, 20)
        members[0].report_progress(41, step_p50_ns=21.5e6, loss=float("nan"))
        members[0].event("odd", text="\x1b[31m[bold]red")
        made.members = members
        yield made


@pytest.fixture
def env(served):
    return {"FARSTEP_COORDINATOR": f"file:{served.where}", "FARSTEP_TLS": served.pki}


def test_status_is_a_table_for_people_and_json_for_programs(served, env):
    wait_until(lambda: "41" in farstep("status", **env).stdout)
    shown = farstep("status", **env)
    assert (shown.returncode, shown.stderr) == (0, "")
    head, names, first, second = shown.stdout.splitlines()
    assert head.startswith("run run/")
    assert "generation 1 (the run begins)   step 41" in head
    assert names.split() == ["seat", "group", "site", "state", "step", "P50", "ms", "silent", "s"]
    assert first.split()[:6] == ["0", "a-0", "here", "training", "41", "21.5"]
    assert second.split()[:4] == ["1", "b-0", "here", "training"]
    assert json.loads(farstep("status", "--json", **env).stdout)["step"] == 41


def test_status_fits_a_narrow_terminal(served, env):
    shown = farstep("status", **{**env, "COLUMNS": "60"})
    assert max(map(len, shown.stdout.splitlines())) <= 60
    assert "training" in shown.stdout


def test_events_are_lines_for_people_and_json_for_programs(served, env):
    shown = farstep("events", **env)
    kinds = [line.split()[2] for line in shown.stdout.splitlines()]
    assert {"coordinator_start", "member_joined", "generation", "odd"} <= set(kinds)
    assert "\x1b" not in shown.stdout
    lines = [json.loads(line) for line in farstep("events", "--json", "-n", "2", **env).stdout.splitlines()]
    assert len(lines) == 2


def test_groups_are_shown_and_changed(served, env):
    assert farstep("groups", **env).stdout == "min_groups 1  max_groups 1024  spares 0\n"
    assert farstep("groups", "--spares", "1", **env).stdout == "min_groups 1  max_groups 1024  spares 1\n"
    fails(farstep("groups", "--max", "4", "--min", "5", **env), 2, "max_groups = 4 is below min_groups = 5")
    assert farstep("groups", "--spares", "0", **env).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "status", "texts"),
    [
        (("drain", "x"), 2, ["there is no member x", "a-0, b-0"]),
        (("evict", "../../v1/config"), 3, []),
        (("drain", "b-0", "--as", "a-0"), 3, ["a-0 is a member; only operators may do this"]),
        (("drain", "b-0", "--as", "nobody"), 2, ["nobody.pem is missing"]),
        (("override", "--generation", "1", "--drop", "b-0"), 2, ["nothing was done", "--yes"]),
        (("override", "--generation", "7", "--drop", "b-0", "--yes"), 2, ["generation 7 is not the current"]),
        (("override", "--generation", "1", "--drop", "b-0", "--yes"), 2, ["b-0 is here"]),
        (("override", "--generation", "1", "--drop", "x", "--yes"), 2, ["x is no member", "a-0, b-0"]),
        (("drain", "b-0", "--reason", "x" * 501), 2, ["reason: "]),
    ],
)
def test_a_command_that_cannot_be_carried_out_says_why(served, env, arguments, status, texts):
    fails(farstep(*arguments, **env), status, *texts)


def test_without_an_address_nothing_is_asked():
    fails(farstep("status"), 2, "no coordinator is named", "FARSTEP_COORDINATOR")
    fails(farstep("status", "--coordinator", "ftp://x"), 2, "is no address; valid: host:port")


def test_an_address_where_nobody_is():
    where = f"127.0.0.1:{free_port()}"
    fails(
        farstep("status", "--coordinator", where), 3, "no coordinator answers", where, "farstep coordinator"
    )
    fails(farstep("events", "--follow", "--coordinator", where), 3, "no coordinator answers")
    fails(
        farstep("status", "--coordinator", "file:/nonexistent/address"),
        3,
        "file:/nonexistent/address names no address now",
    )


def test_the_first_address_that_answers_is_asked(served, env):
    addresses = f"127.0.0.1:{free_port()},{served.url}"
    assert farstep("status", **{**env, "FARSTEP_COORDINATOR": addresses}).returncode == 0


def test_plain_against_certificates_says_what_is_missing(served, pki, tmp_path):
    address = served.url.removeprefix("wss://")
    fails(farstep("status", "--coordinator", address), 3, "--tls DIR")
    fails(farstep("status", "--coordinator", served.url), 3, "it wants a certificate", "--tls DIR")
    plain = Served(None, tmp_path)
    with contextlib.closing(plain):
        plain_address = plain.url.removeprefix("ws://")
        fails(
            farstep("status", "--coordinator", plain_address, "--tls", pki),
            3,
            "does not speak TLS",
            "--insecure",
        )
        fails(farstep("status", "--coordinator", plain.url, "--tls", pki), 3, "has no certificate")


def test_certificates_of_another_authority(served, tmp_path):
    make_certificates(tmp_path, [])
    fails(
        farstep("status", "--coordinator", served.url, "--tls", tmp_path),
        3,
        "certificates do not fit together",
        "the same ca.pem",
    )


def expire(folder, monkeypatch, *names, **more):
    monkeypatch.setattr(certificates, "_expiry", lambda days: datetime.datetime.now(datetime.UTC))
    make_certificates(folder, list(names), is_renewal=True, **more)
    monkeypatch.undo()


def test_certificates_that_have_expired(tmp_path, monkeypatch):
    make_certificates(tmp_path, ["a-0"])
    expire(tmp_path, monkeypatch, "a-0")
    done = farstep("coordinator", "--tls", tmp_path, "--port", "0")
    fails(done, 2, "coordinator.pem has expired on", f"farstep certificates {tmp_path} --renew")
    fails(
        farstep("status", "--coordinator", "x", "--tls", tmp_path),
        2,
        "operator.pem has expired on",
        "--renew",
    )
    assert farstep("certificates", tmp_path).stdout.count("made, until") == 2


def test_an_expired_certificate_of_the_coordinator_is_told_in_words():
    cause, hint = in_words(
        ssl.SSLError(
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1)"
        ),
        has_certificates=True,
    )
    assert cause == "a certificate has expired"
    assert "--renew" in hint


def test_another_server_at_that_address():
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if "members" not in self.path else 404)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"127.0.0.1:{server.server_port}"
        fails(farstep("status", "--coordinator", where), 3, where, "no farstep coordinator")
        fails(farstep("drain", "x", "--coordinator", where), 3, "is it a farstep coordinator?")
        server.shutdown()


def test_certificates_are_listed_and_mistakes_told(tmp_path):
    done = farstep("certificates", tmp_path / "pki", "--name", "a-0", "--host", "train.example")
    assert [line.split()[1:4] for line in done.stdout.splitlines()] == [
        ["coordinator", "made,", "until"],
        ["member", "made,", "until"],
        ["operator", "made,", "until"],
    ]
    again = farstep("certificates", tmp_path / "pki", "--name", "a-0", "--renew")
    assert again.stdout.count("made, until") == 3
    kept = farstep("certificates", tmp_path / "pki", "--name", "a-0")
    assert kept.stdout.count("is there, until") == 3
    fails(farstep("certificates", tmp_path / "pki", "--name", "a b"), 2, "'a b' cannot be the name")
    fails(
        farstep("certificates", tmp_path / "pki", "--host", "a b", "--renew"),
        2,
        "'a b' is neither a host name",
    )
    fails(farstep("certificates", tmp_path / "pki", "--days", "0"), 2, "--days")


@pytest.mark.parametrize(
    ("arguments", "status", "texts"),
    [
        ((), 2, ["needs --tls DIR, or --insecure", "farstep certificates"]),
        (("--insecure", "--host", "0.0.0.0"), 2, ["--insecure is for loopback addresses"]),
        (("--insecure", "--host", "::"), 2, ["--insecure is for loopback addresses"]),
        (("--insecure", "--tls", "x"), 2, ["exclude each other"]),
        (("--tls", "none"), 2, ["ca.pem is missing"]),
        (("--insecure", "--groups", "1", "--min-groups", "2"), 2, ["groups = 1 is below min_groups = 2"]),
        (("--insecure", "--run", "a b"), 2, ["--run: "]),
        (("--insecure", "--silence-s", "0.1"), 2, ["three heartbeats"]),
        (("--insecure", "--port", "70000"), 2, ["--port"]),
        (("--tls", "{pki}", "--host", "no-such-host.invalid"), 4, ["no-such-host.invalid"]),
        (("--insecure", "--out", "/proc/none"), 4, ["/proc"]),
        (("--insecure", "--port", "0", "--announce", "/proc/none/where"), 2, ["no folder /proc/none"]),
        (("--insecure", "--port", "0", "--announce", "/proc"), 2, ["--announce", "/proc is a folder"]),
        (("--insecure", "--port", "0", "--groups", "1025"), 2, ["--groups", "1024"]),
        (("--insecure", "--port", "0", "--run", ""), 2, ["--run", "valid: letters, digits"]),
    ],
)
def test_a_coordinator_that_cannot_start_says_why(pki, arguments, status, texts):
    done = farstep("coordinator", *(argument.format(pki=pki) for argument in arguments))
    if "--insecure" in arguments and done.stderr.startswith("note: "):
        done.stderr = done.stderr.partition("\n")[2]
    fails(done, status, *texts)


def test_a_coordinator_can_be_told_to_end_with_its_input():
    command = [
        sys.executable,
        "-m",
        "farstep",
        "coordinator",
        "--insecure",
        "--port",
        "0",
        "--end-with-input",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("coordinator at ws://127.0.0.1:")
        process.stdin.close()
        assert process.wait(30) in (0, -signal.SIGTERM)


def test_certificates_that_cannot_be_used(tmp_path):
    make_certificates(tmp_path, ["a-0"])
    (tmp_path / "coordinator.key").write_bytes((tmp_path / "a-0.key").read_bytes())
    fails(farstep("coordinator", "--tls", tmp_path), 2, "coordinator.pem", "cannot be used")
    fails(
        farstep("status", "--tls", tmp_path, "--as", "coordinator", "--coordinator", "x"), 2, "cannot be used"
    )


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_that_is_taken_is_told(family):
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        done = farstep("coordinator", "--insecure", "--host", host, "--port", port)
    assert done.returncode == 4
    assert f"error: {'[::1]' if ':' in host else host}:{port}: Address already in use" in done.stderr
    assert "--port" in done.stderr


def test_a_coordinator_on_an_ipv6_address(tmp_path):
    made = Served(None, tmp_path, "--host", "::1")
    with contextlib.closing(made):
        assert made.url.startswith("ws://[::1]:")
        assert farstep("status", "--coordinator", made.url).stdout == "run run\nno member is here\n"
        assert farstep("status", "--coordinator", f"file:{made.where}").returncode == 0


def test_a_coordinator_on_all_addresses_announces_real_ones(pki, tmp_path):
    made = Served(pki, tmp_path, "--host", "::")
    with contextlib.closing(made):
        urls = made.where.read_text().split()
        assert len(urls) >= 2
        assert not any("0.0.0.0" in url or "[::]" in url for url in urls)
        port = urls[0].rpartition(":")[2]
        for host in ("127.0.0.1", "[::1]"):
            assert farstep("status", "--coordinator", f"{host}:{port}", "--tls", pki).returncode == 0


def test_two_coordinators_of_one_log_are_told(tmp_path):
    one = Served(None, tmp_path)
    two = Served(None, tmp_path)
    wait_until(lambda: one.log.read_text().count("coordinator_start") == 2)
    one.child.terminate()
    two.child.terminate()
    assert "also written" not in one.child.communicate()[1]
    assert "events.jsonl is also written by another process" in two.child.communicate()[1]
    kinds = [json.loads(line)["kind"] for line in one.log.read_text().splitlines()]
    assert kinds.count("coordinator_start") == 2


def test_following_events_over_a_restart(tmp_path):
    port = free_port()
    made = Served(None, tmp_path, port=port, groups=1)
    command = [sys.executable, "-m", "farstep", "events", "--follow", "--coordinator", f"127.0.0.1:{port}"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = []
    thread = threading.Thread(target=lambda: said.extend(iter(reader.stdout.readline, "")), daemon=True)
    thread.start()
    try:
        with contextlib.closing(made.member("a-0")) as member:
            wait_until(lambda: any(" generation " in line for line in said), 20)
            made.close()
            made = Served(None, tmp_path, port=port, groups=1)
            member.event("after", number=1)
            wait_until(lambda: any(" after " in line for line in said), 20)
        assert sum("coordinator_start" in line for line in said) == 2
        reader.send_signal(signal.SIGINT)
        _, errors = reader.communicate(timeout=10)
        assert errors == "the coordinator is away; waiting for it\n"
        assert reader.returncode == 130
    finally:
        reader.kill()
        reader.wait()
        made.close()
        thread.join(5)


def test_drain_and_evict(tmp_path):
    made = Served(None, tmp_path, groups=3)
    with contextlib.closing(made), contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(contextlib.closing(made.member(name))) for name in ("a-0", "b-0", "c-0")
        ]
        members[0].wait_generation(0, 20)
        done = farstep("drain", "b-0", "--reason", "upgrade", "--coordinator", made.url)
        assert (done.returncode, done.stdout) == (0, "b-0 is being drained: upgrade\n")
        assert [seat.name for seat in members[0].wait_generation(1, 10).seats] == ["a-0", "c-0"]
        done = farstep("evict", "c-0", "--coordinator", made.url)
        assert done.returncode == 0
        assert [seat.name for seat in members[0].wait_generation(2, 10).seats] == ["a-0"]


def test_join_runs_a_command_as_a_member_and_restarts_it(tmp_path):
    made = Served(None, tmp_path, groups=1)
    program = tmp_path / "train.py"
    program.write_text(
        "import os, signal\n"
        "from farstep.membership import MemberInfo\n"
        "from farstep.membership.client import MembershipClient\n"
        "env = os.environ\n"
        "info = MemberInfo.create(env['FARSTEP_GROUP'], site=env['FARSTEP_SITE'], member_id=env['FARSTEP_MEMBER_ID'])\n"
        "member = MembershipClient(env['FARSTEP_COORDINATOR'], info)\n"
        "member.wait_generation(0, 20)\n"
        "member.report_progress(1)\n"
        "if not os.path.exists('died'):\n"
        "    open('died', 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "member.leave('finished', finished=True, step=1)\n"
        "member.close()\n"
    )
    command = [sys.executable, "-m", "farstep", "join", "--coordinator", made.url, "--name", "a-0"]
    command += ["--site", "x"]
    with contextlib.closing(made):
        done = subprocess.run(
            [*command, "--restart", "1", "--", sys.executable, str(program)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "a-0: killed by SIGKILL; starting it again in 1 s (1 of 1)\n"
    lines = [json.loads(line) for line in made.log.read_text().splitlines()]
    assert len([line for line in lines if line["kind"] == "member_joined" and line["member"] == "a-0"]) == 2
    assert "run_ended" in [line["kind"] for line in lines]


@pytest.mark.parametrize(
    ("arguments", "status", "texts"),
    [
        ((), 2, ["no command is given", "-- python train.py"]),
        (("--name", "a b", "--", "true"), 2, ["'a b' cannot be the name"]),
        (("--tls", "none", "--", "true"), 2, ["ca.pem is missing"]),
        (("--run", "a b", "--", "true"), 2, ["'a b' cannot be the name of a run"]),
        (("--", "no-such-command"), 4, ["no-such-command: No such file"]),
    ],
)
def test_a_join_that_cannot_be_says_why(arguments, status, texts):
    fails(farstep("join", *arguments, FARSTEP_COORDINATOR="127.0.0.1:9"), status, *texts)
    fails(farstep("join", "--", "true"), 2, "no coordinator is named")


def test_the_status_of_the_command_is_the_status_of_join():
    done = farstep("join", "--", "sh", "-c", "exit 7", FARSTEP_COORDINATOR="127.0.0.1:9")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_what_members_say_cannot_drive_a_terminal():
    assert printable("a\x1b[2J\x07\nb\u202e") == "a\ufffd[2J\ufffd\ufffdb\ufffd"


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("join", "--coordinator", "x", "--site", "x\ny", "--", "true"), ["--site", "printable"]),
        (("join", "--coordinator", "x", "--site", "x" * 3000, "--", "true"), ["--site", "at most 64"]),
        (("join", "--coordinator", "host:0", "--name", "a", "--", "true"), ["nobody listens at port 0"]),
        (("status", "--coordinator", "host:0"), ["nobody listens at port 0"]),
        (("status", "--coordinator", "a\nb"), ["is no address"]),
        (("drain", "a", "--coordinator", "127.0.0.1:1", "--reason", "x\ny"), ["--reason", "one line"]),
        (("local", ""), ["the command is empty"]),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_starts(arguments, texts):
    fails(farstep(*arguments), 2, *texts)


def test_causes_have_room_in_a_narrow_terminal():
    from rich.console import Console

    from farstep.cli.members import _screen

    figures = {"step_p50_ns": 1e8, "step_p99_ns": 2e8, "step_max_ns": 3e8, "loss": 2.5}
    member = {
        "name": "a-0", "site": "west", "state": "leaving", "seat": 0, "step": 12345, "silent_s": 0.1,
        "cause": "the host is taken down for maintenance", "figures": figures,
    }  # fmt: skip
    status = {
        "run_id": "run/1", "generation": None, "step": 12345, "waiting": None, "ended": None, "members": [member],
    }  # fmt: skip
    console = Console(width=80, record=True)
    console.print(_screen(status))
    assert "a-0: the host is taken down for maintenance" in console.export_text()
