"""The emulator as a process: real datagrams on loopback, faults, control, and how it ends."""

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farstep.fabric import ConfigError, FaultScript, full_mesh, parse_fault
from farstep.lab import Emulator, EmulatorClient, EmulatorError

UDP_SEGMENT, UDP_GRO, IP_RECVTOS = 103, 104, 13
HEADER_BYTES = 28


def udp(family=socket.AF_INET, **options):
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    made.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", options.get("port", 0)))
    made.settimeout(5.0)
    return made


@contextmanager
def joined(network, **options):
    """Yields an emulator, a socket at site b, and a socket at site a connected to it."""
    with Emulator(network, **options) as emulator, udp() as sink, udp() as source:
        source.connect(emulator.expose("b", 0, sink.getsockname())["a"])
        yield emulator, sink, source


def send_numbered(source, numbers, *, size=100, pause_s=0.0):
    for number in numbers:
        source.send(number.to_bytes(4, "big").ljust(size, b"x"))
        if pause_s:
            time.sleep(pause_s)


def send_segments(source, data, *, size):
    source.sendmsg([data], [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))])


def send_burst(source, count, *, size):
    """Sends equal datagrams that arrive at one instant, however busy the machine is."""
    send_segments(source, bytes(count * size), size=size)


def drain(sink, *, quiet_s=0.3):
    """Returns the numbers of all datagrams that arrive until it is quiet."""
    numbers = []
    sink.settimeout(quiet_s)
    try:
        while True:
            numbers.append(int.from_bytes(sink.recv(65_536)[:4], "big"))
    except TimeoutError:
        return numbers


def channel(emulator, path, from_site="a"):
    return next(
        entry
        for entry in emulator.stats()["channels"]
        if (entry["path"], entry["from_site"]) == (path, from_site)
    )


def is_running(pid):
    """True for a process that exists and is no zombie (whose new parent may not collect it)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, *, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def test_datagrams_cross_after_the_delay_of_the_path():
    with joined(full_mesh(("a", "b"), delay_ms=30.0)) as (emulator, sink, source):
        trips = []
        for _ in range(10):
            start = time.monotonic()
            source.send(b"hello")
            assert sink.recv(100) == b"hello"
            trips.append(time.monotonic() - start)
        assert min(trips) >= 0.030
        assert sorted(trips)[5] < 0.060
        assert channel(emulator, "a-b:0")["delivered_packets"] == 10
        assert channel(emulator, "a-b:0", "b")["delivered_packets"] == 0


def test_a_burst_crosses_whole_and_in_order_and_may_be_received_coalesced():
    with joined(full_mesh(("a", "b"), rate_mbps=500.0, delay_ms=1.0)) as (_, sink, source):
        sink.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        sent = b"".join(bytes([number]) * 1200 for number in range(20)) + b"tail"
        send_segments(source, sent, size=1200)
        received = b""
        while len(received) < len(sent):
            received += sink.recv(65_536)
        assert received == sent


def test_an_overloaded_path_delivers_its_rate_and_drops_the_rest():
    mbps, size, fitting = 8.0, 1400, 300
    network = full_mesh(("a", "b"), rate_mbps=mbps, queue_limit_kb=fitting * (size + HEADER_BYTES) / 1000)
    with joined(network) as (emulator, sink, source):
        for _ in range(40):
            send_burst(source, 10, size=size)
        arrivals = []
        while not arrivals or channel(emulator, "a-b:0")["in_flight_packets"]:
            sink.recv(2000)
            arrivals.append(time.monotonic())
        arrivals += [time.monotonic() for _ in drain(sink, quiet_s=0.2)]
        figures = channel(emulator, "a-b:0")
        assert figures["offered_packets"] == 400
        assert figures["delivered_packets"] == 400 - figures["drops"]["queue"] == len(arrivals)
        assert fitting <= len(arrivals) <= fitting + 100
        taken_s = arrivals[200] - arrivals[0]
        assert 200 * (size + HEADER_BYTES) * 8 / taken_s / 1e6 == pytest.approx(mbps, rel=0.1)


def test_losses_follow_the_seed():
    def lost(seed):
        network = full_mesh(("a", "b"), loss_percent=10.0, seed=seed)
        with joined(network) as (emulator, sink, source):
            send_numbered(source, range(500))
            arrived = drain(sink)
            assert channel(emulator, "a-b:0")["drops"]["loss"] == 500 - len(arrived)
            return set(range(500)) - set(arrived)

    first = lost(1)
    assert 20 <= len(first) <= 90
    assert first == lost(1) != lost(2)


def test_order_is_kept_within_a_path_even_with_jitter():
    with joined(full_mesh(("a", "b"), delay_ms=2.0, jitter_ms=5.0)) as (_, sink, source):
        send_numbered(source, range(300), pause_s=0.0002)
        assert drain(sink) == list(range(300))


def test_reordering_delivers_everything_but_not_in_order():
    with joined(full_mesh(("a", "b"), reorder_percent=20.0, reorder_delay_ms=5.0)) as (_, sink, source):
        send_numbered(source, range(200))
        arrived = drain(sink)
        assert sorted(arrived) == list(range(200)) != arrived


def test_congestion_marks_ecn_capable_packets_only():
    network = full_mesh(("a", "b"), rate_mbps=20.0, ecn_threshold_kb=20)
    for tos, marked in ((0b10, 0b11), (0b1001, 0b1011), (0, 0)):
        with joined(network) as (emulator, sink, source):
            sink.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
            source.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            send_burst(source, 40, size=1000)
            seen = []
            for _ in range(40):
                _, ancillary, _, _ = sink.recvmsg(2000, 64)
                seen.append(ancillary[0][2][0])
            assert seen[0] == tos
            assert seen[-1] == marked
            assert channel(emulator, "a-b:0")["ecn_marked"] == (
                sum(value == marked for value in seen) if tos else 0
            )


def test_a_source_port_keeps_its_path_and_ports_spread_over_paths():
    network = full_mesh(("a", "b"), paths_per_plane=4, port_to_path="modulo")
    with Emulator(network) as emulator, udp() as sink:
        target = emulator.expose("b", 0, sink.getsockname())["a"]
        for _ in range(8):
            with udp() as source:
                index = source.getsockname()[1] % 4
                before = channel(emulator, f"a-b:0.{index}")["offered_packets"]
                for _ in range(5):
                    source.sendto(b"x", target)
                    sink.recv(10)
                assert channel(emulator, f"a-b:0.{index}")["offered_packets"] == before + 5


def test_hashed_ports_use_all_paths():
    with Emulator(full_mesh(("a", "b"), paths_per_plane=4)) as emulator, udp() as sink:
        target = emulator.expose("b", 0, sink.getsockname())["a"]
        for _ in range(64):
            with udp() as source:
                source.sendto(b"x", target)
                sink.recv(10)
        used = [channel(emulator, f"a-b:0.{index}")["delivered_packets"] for index in range(4)]
        assert sum(used) == 64
        assert min(used) >= 4


def test_a_signalled_outage_moves_a_port_to_another_path_and_a_silent_one_does_not():
    with joined(full_mesh(("a", "b"), paths_per_plane=2)) as (emulator, sink, source):
        send_numbered(source, [1])
        assert drain(sink, quiet_s=0.1) == [1]
        used = next(entry["path"] for entry in emulator.stats()["channels"] if entry["delivered_packets"])
        emulator.apply({"kind": "path_down", "path": used, "name": "silent"})
        send_numbered(source, [2])
        assert drain(sink, quiet_s=0.1) == []
        emulator.restore("silent")
        emulator.apply({"kind": "path_down", "path": used, "silent": False, "name": "signalled"})
        send_numbered(source, [3])
        assert drain(sink, quiet_s=0.1) == [3]
        emulator.restore("signalled")
        send_numbered(source, [4])
        assert drain(sink, quiet_s=0.1) == [4]
        assert channel(emulator, used)["delivered_packets"] == 2


def test_a_script_cuts_a_path_at_a_step_and_brings_it_back():
    script = FaultScript.parse(
        {"faults": [{"kind": "path_down", "path": "a-b:0", "at_step": 3, "duration_steps": 2, "name": "cut"}]}
    )
    with joined(full_mesh(("a", "b"), planes=2), faults=script) as (emulator, sink, source):
        for step in range(8):
            assert emulator.notify_step(step) == (1 if step in (3, 5) else 0)
            send_numbered(source, [step])
            wait_for(lambda sent=step + 1: channel(emulator, "a-b:0")["offered_packets"] == sent)
        assert drain(sink) == [0, 1, 2, 5, 6, 7]
        applied, reverted = emulator.events(timeout_s=2.0)
        assert (applied["action"], applied["fault"], applied["step"]) == ("applied", "path_down", 3)
        assert (reverted["action"], reverted["name"], reverted["step"]) == ("reverted", "cut", 5)
        assert applied["target"] == "path=a-b:0"
        assert applied["monotonic_ns"] <= reverted["monotonic_ns"] <= time.monotonic_ns()
        assert {entry["path"] for entry in applied["channels"]} == {"a-b:0"}
        assert emulator.events() == []


def test_a_script_cuts_a_path_at_a_time_and_brings_it_back():
    with joined(full_mesh(("a", "b"))) as (emulator, sink, source):
        fault = parse_fault({"kind": "site_down", "site": "b", "at_s": 0.3, "duration_s": 0.4})
        start = time.monotonic()
        emulator.load([fault])
        sent_at = {}
        for number in range(100):
            sent_at[number] = time.monotonic() - start
            send_numbered(source, [number])
            time.sleep(0.01)
        lost = sorted(set(range(100)) - set(drain(sink)))
        assert lost == list(range(lost[0], lost[-1] + 1))
        assert sent_at[lost[0]] == pytest.approx(0.3, abs=0.2)
        assert sent_at[lost[-1]] == pytest.approx(0.7, abs=0.2)


def test_a_new_script_replaces_the_old_one_and_takes_back_what_it_did():
    with joined(full_mesh(("a", "b"))) as (emulator, sink, source):
        emulator.load([parse_fault({"kind": "path_down", "path": "a-b:0", "at_s": 0, "name": "old"})])
        assert channel(emulator, "a-b:0")["is_down"]
        assert emulator.stats()["active_faults"] == ["old"]
        with pytest.raises(
            ConfigError, match=r"second.toml: faults\[0\].path = \"x\": no such path; known paths"
        ):
            emulator.load([parse_fault({"kind": "path_down", "path": "x", "at_s": 0})], source="second.toml")
        assert channel(emulator, "a-b:0")["is_down"]
        emulator.load([])
        send_numbered(source, [1])
        assert drain(sink, quiet_s=0.1) == [1]


def test_several_sites_reach_a_port_over_paths_of_their_own():
    network = full_mesh(("a", "b", "c"), planes=2)
    with Emulator(network) as emulator, udp() as sink, udp() as source:
        reachable = emulator.expose("c", 1, sink.getsockname())
        assert set(reachable) == {"a", "b", "c"}
        assert reachable["c"] == sink.getsockname()
        assert emulator.expose("c", 1, sink.getsockname()) == reachable
        for site in ("a", "b"):
            source.sendto(site.encode(), reachable[site])
            assert sink.recv(10) == site.encode()
            assert channel(emulator, f"{site}-c:1", site)["delivered_packets"] == 1
        assert emulator.withdraw("c", 1, sink.getsockname()) is True
        assert emulator.withdraw("c", 1, sink.getsockname()) is False


def test_ipv6_ports_are_carried_too():
    network = full_mesh(("a", "b"), rate_mbps=10.0, ecn_threshold_kb=1)
    with Emulator(network) as emulator, udp(socket.AF_INET6) as sink, udp(socket.AF_INET6) as source:
        source.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0b10)
        source.connect(emulator.expose("b", 0, sink.getsockname()[:2])["a"])
        send_burst(source, 20, size=500)
        assert len(drain(sink)) == 20
        assert channel(emulator, "a-b:0")["ecn_marked"] > 0


def test_answers_to_the_source_address_are_carried_back_when_wanted():
    with (
        Emulator(full_mesh(("a", "b"), delay_ms=20.0)) as emulator,
        udp() as server,
        udp() as one,
        udp() as other,
    ):
        target = emulator.expose("b", 0, server.getsockname(), can_answer=True)["a"]
        for client in (one, other):
            client.connect(target)
            start = time.monotonic()
            client.send(b"question")
            question, source = server.recvfrom(100)
            assert source != client.getsockname()
            server.sendto(question + b" answered", source)
            assert client.recv(100) == b"question answered"
            assert time.monotonic() - start >= 0.040
        assert channel(emulator, "a-b:0", "b")["delivered_packets"] == 2


def test_nobody_at_the_destination_does_not_disturb_the_emulator():
    with joined(full_mesh(("a", "b"))) as (emulator, sink, source):
        address = sink.getsockname()
        sink.close()
        send_numbered(source, range(50), pause_s=0.001)
        with udp(port=address[1]) as again:
            send_numbered(source, range(5), pause_s=0.01)
            assert set(drain(again)) >= {1, 2, 3, 4}
        assert emulator.stats()["undeliverable_packets"] > 0


# -- control ------------------------------------------------------------------------------------------------


def test_another_process_controls_the_emulator_by_its_address():
    program = (
        "import sys; from farstep.lab import EmulatorClient\n"
        "with EmulatorClient(sys.argv[1]) as client:\n"
        "    print(client.expose('b', 0, ('127.0.0.1', 9))['a'][0], 'torch' in sys.modules)\n"
    )
    with Emulator(full_mesh(("a", "b"))) as emulator:
        ran = subprocess.run(
            [sys.executable, "-c", program, emulator.control], capture_output=True, text=True, timeout=60
        )
        assert (ran.stdout, ran.stderr) == ("127.0.0.1 False\n", "")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"\xff\xfe", ""),
        (b"{", ""),
        (b"[]", "a request is an object"),
        (b"[" * 100_000, "nested"),
        (b"{}", "no such operation; valid: "),
        (b'{"op": ["stats"]}', "no such operation"),
        (b'{"op": "expose"}', "site = None: must be of type str"),
        (b'{"op": "expose", "site": "q", "address": ["127.0.0.1", 1]}', "known sites: a, b"),
        (b'{"op": "expose", "site": "a", "plane": 9, "address": ["127.0.0.1", 1]}', "planes there: 0"),
        (b'{"op": "expose", "site": "a", "address": ["127.0.0.1", 70000]}', "port in 0..65535"),
        (b'{"op": "expose", "site": "a", "address": ["no such host", 1]}', "cannot be reached"),
        (b'{"op": "expose", "site": "a", "address": ["127.0.0.1", 1], "listen": 5}', "listen = 5"),
        (b'{"op": "notify_step", "step": true}', "must be of type int"),
        (b'{"op": "notify_step", "step": -1}', "must be 0 or more"),
        (b'{"op": "apply", "fault": {"kind": "loss"}}', "fault"),
        (b'{"op": "load", "faults": 3}', "fault script: faults"),
        (b'{"op": "subscribe", "since": "now"}', "must be the number of an event"),
    ],
)
def test_bad_requests_are_answered_with_an_error(shared_emulator, line, told):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(5.0)
        raw.connect(shared_emulator.control)
        raw.sendall(line + b'\n{"id": 7, "op": "stats"}\n')
        stream = raw.makefile("rb")
        refused, answered = json.loads(stream.readline()), json.loads(stream.readline())
        assert refused["ok"] is False
        assert told in refused["error"]
        assert (answered["ok"], answered["id"]) == (True, 7)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
OPERATIONS = ("expose", "withdraw", "load", "apply", "notify_step", "stats", "events", "ping")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(OPERATIONS) | JSON.filter(lambda value: value not in ("stop", "subscribe")),
    st.dictionaries(
        st.sampled_from(("site", "plane", "address", "listen", "fault", "faults", "step", "since", "source")),
        JSON,
    ),
)
def test_whatever_is_asked_is_answered(shared_emulator, operation, arguments):
    with contextlib.suppress(ConfigError):
        shared_emulator.request(operation, **arguments)


@pytest.fixture(scope="module")
def shared_emulator():
    with Emulator(full_mesh(("a", "b"))) as emulator:
        yield emulator


def test_a_client_that_sends_an_endless_line_or_vanishes_leaves_the_others_alone(shared_emulator):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10.0)
        raw.connect(shared_emulator.control)
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            raw.sendall(b"x" * (16 << 20))
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(shared_emulator.control)
        raw.sendall(b'{"op": "stats"}\n' * 50)
    assert shared_emulator.stats()["channels"]


def test_the_reference_page_names_every_figure_event_field_and_operation(shared_emulator):
    page = Path(__file__).parents[2] / "docs" / "reference" / "fault-script.md"
    named = set(re.findall(r"`([a-z_]+)`", page.read_text(encoding="utf-8")))
    stats = shared_emulator.stats()
    figures = {*stats, *stats["channels"][0], *stats["channels"][0]["drops"]}
    shared_emulator.apply({"kind": "loss", "path": "a-b:0", "loss_percent": 5, "name": "for-the-page"})
    shared_emulator.restore("for-the-page")
    event = shared_emulator.events()[-1]
    with pytest.raises(ConfigError, match="valid: ") as caught:
        shared_emulator.request("nothing")
    operations = set(str(caught.value).partition("valid: ")[2].split(", "))
    assert figures | set(event) | operations <= named


def test_events_reach_every_client_even_one_that_comes_late():
    with Emulator(full_mesh(("a", "b"))) as emulator:
        emulator.apply({"kind": "loss", "path": "a-b:0", "loss_percent": 5, "name": "noise"})
        with EmulatorClient(emulator.control) as late:
            (event,) = late.events(timeout_s=2.0)
            assert (event["name"], event["value"], event["number"]) == ("noise", 5.0, 1)
            emulator.restore("noise")
            (event,) = late.events(timeout_s=2.0)
            assert event["action"] == "reverted"


# -- life and death -----------------------------------------------------------------------------------------


def test_an_idle_emulator_uses_no_cpu():
    with Emulator(full_mesh(("a", "b"), planes=4, rate_mbps=100.0)) as emulator, udp() as sink:
        for plane in range(4):
            emulator.expose("b", plane, sink.getsockname())
        before = emulator.stats()
        time.sleep(1.2)
        after = emulator.stats()
        assert after["cpu_s"] - before["cpu_s"] < 0.01 * (after["elapsed_s"] - before["elapsed_s"])
        assert after["wakeups"] - before["wakeups"] < 10


def test_closing_ends_the_process_and_removes_its_socket():
    emulator = Emulator(full_mesh(("a", "b")))
    pid, control = emulator.pid, emulator.control
    emulator.close()
    emulator.close()
    assert emulator.pid is None
    assert not os.path.exists(os.path.dirname(control))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(EmulatorError, match="no emulator answers at"):
        EmulatorClient(control)


def test_a_killed_emulator_is_reported_and_closes_cleanly():
    with Emulator(full_mesh(("a", "b"))) as emulator:
        os.kill(emulator.pid, signal.SIGKILL)
        with pytest.raises(EmulatorError, match="has ended"):
            emulator.stats()


def test_ctrl_c_leaves_the_network_up_until_the_parent_closes_it():
    with joined(full_mesh(("a", "b"))) as (emulator, sink, source):
        assert os.getpgid(emulator.pid) != os.getpgid(0)
        os.kill(emulator.pid, signal.SIGINT)
        send_numbered(source, [5])
        assert drain(sink, quiet_s=0.2) == [5]


def test_ctrl_c_while_the_emulator_starts_leaves_nothing(monkeypatch, tmp_path):
    started = []

    class Remembered(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("farstep.lab.emulator.subprocess.Popen", Remembered)
    monkeypatch.setattr("farstep.lab.emulator.select.select", interrupted)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        Emulator(full_mesh(("a", "b")))
    (process,) = started
    assert process.poll() is not None
    assert list(tmp_path.iterdir()) == []


def test_an_emulator_whose_parent_has_gone_meanwhile_says_nothing():
    process = subprocess.Popen(
        [sys.executable, "-m", "farstep.lab.spawned"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    order = {"network": full_mesh(("a", "b")).model_dump(mode="json"), "control": "/nowhere/control"}
    order |= {"listen_host": "127.0.0.1", "parent_pid": os.getpid()}
    process.stdout.close()
    process.stdin.write(json.dumps(order).encode())
    process.stdin.close()
    process.stdin = None
    assert process.wait(timeout=30) == 2
    assert process.stderr.read() == b""
    process.stderr.close()


def test_the_emulator_ends_when_its_parent_dies():
    program = (
        "import os\nfrom farstep.fabric import full_mesh\nfrom farstep.lab import Emulator\n"
        "emulator = Emulator(full_mesh(('a', 'b')))\n"
        "print(emulator.pid, emulator.control, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    pid, control = ran.stdout.split()
    wait_for(lambda: not os.path.exists(os.path.dirname(control)))
    wait_for(lambda: not is_running(int(pid)))
    with pytest.raises(EmulatorError):
        EmulatorClient(control)


def test_a_wrong_network_or_script_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="no such path"):
        Emulator(full_mesh(("a", "b")), faults=[parse_fault({"kind": "path_down", "path": "x", "at_s": 1})])
    file = tmp_path / "net.toml"
    file.write_text('sites = ["a", "b"]\n[[paths]]\nname = "p"\ndelay = 3\n')
    with pytest.raises(
        ConfigError, match=r"net.toml: paths\[0\]: no key \"delay\" here; did you mean delay_ms\?"
    ):
        Emulator(file)


def test_the_process_imports_quickly_and_without_torch():
    program = "import sys, farstep.lab.process; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n"


def test_the_command_carries_questions_and_answers_and_ends_at_ctrl_c(tmp_path):
    with udp() as server, udp() as client:
        port = server.getsockname()[1]
        file = tmp_path / "net.toml"
        file.write_text(
            'sites = ["east", "west"]\n[[paths]]\nname = "north"\ndelay_ms = 5\n'
            f'[[expose]]\nsite = "west"\naddress = "127.0.0.1:{port}"\n'
            '[[faults]]\nkind = "loss"\npath = "north"\nloss_percent = 0\nat_s = 0\n'
        )
        with subprocess.Popen(
            [sys.executable, "-m", "farstep.lab", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            told = process.stdout.readline()
            assert told.startswith(f"east reaches 127.0.0.1:{port} at west (plane 0) at 127.0.0.1:")
            assert process.stdout.readline().startswith("control address: ")
            assert "applied   loss path=north" in process.stdout.readline()
            client.sendto(b"question", ("127.0.0.1", int(told.rpartition(":")[2])))
            question, source = server.recvfrom(100)
            server.sendto(question, source)
            assert client.recv(100) == b"question"
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=30)
            assert (process.returncode, errors) == (0, "")
            assert "north                east -> west              1            1" in output


def test_a_thread_that_follows_events_ends_when_the_emulator_is_closed():
    emulator = Emulator(full_mesh(("a", "b")))
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(emulator.follow()))
    thread.start()
    emulator.apply({"kind": "loss", "path": "a-b:0", "loss_percent": 5})
    wait_for(lambda: len(seen) == 1)
    emulator.close()
    thread.join(5)
    assert not thread.is_alive()
