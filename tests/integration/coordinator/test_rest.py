"""The REST interface over real connections with certificates: who may do what, and streams that are followed."""

import contextlib
import json
import socket
import ssl
import threading
import time

import httpx
import pytest

from farstep.coordinator.certificates import make_certificates
from farstep.membership import MemberInfo, MembershipError
from farstep.membership.client import MembershipClient
from farstep.membership.tls import COORDINATOR_NAME, TlsFiles
from tests.integration.coordinator.processes import wait_until
from tests.integration.coordinator.served import Served


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    make_certificates(folder, ["a-0", "b-0"], operators=("ana",))
    return folder


@pytest.fixture(scope="module")
def served(pki, tmp_path_factory):
    made = Served(pki, tmp_path_factory.mktemp("served"))
    with contextlib.closing(made), contextlib.ExitStack() as stack:
        made.members = [stack.enter_context(contextlib.closing(made.member(name))) for name in ("a-0", "b-0")]
        assert made.members[0].wait_generation(0, 20).number == 1
        yield made


READING = [
    "/",
    "/docs",
    "/openapi.json",
    "/v1/status",
    "/v1/members",
    "/v1/generations",
    "/v1/events",
    "/metrics",
]


@pytest.mark.parametrize("path", READING)
@pytest.mark.parametrize("name", ["a-0", "ana"])
def test_whoever_has_a_certificate_reads(served, name, path):
    assert served.ask(name, "GET", path).status_code == 200


COMMANDS = [
    ("POST", "/v1/members/b-0/drain", {}),
    ("POST", "/v1/members/b-0/evict", {}),
    ("POST", "/v1/override", {"generation": 1, "drop": ["b-0"], "is_sure": True}),
    ("PATCH", "/v1/config", {"spares": 3}),
]


@pytest.mark.parametrize(("method", "path", "body"), COMMANDS)
@pytest.mark.parametrize("name", ["a-0", "coordinator"])
def test_members_command_nothing(served, name, method, path, body):
    answer = served.ask(name, method, path, json=body)
    assert answer.status_code == 403
    assert "only operators may do this" in answer.json()["detail"]
    assert served.ask("ana", "GET", "/v1/status").json()["config"]["spares"] == 0


def test_who_commanded_is_written_down(served):
    assert served.ask("ana", "PATCH", "/v1/config", json={"max_groups": 900}).json()["max_groups"] == 900
    lines = [json.loads(line) for line in served.log.read_text().splitlines()]
    assert any(line["kind"] == "operator" and line["who"] == "ana" for line in lines)


@pytest.mark.parametrize("path", ["/v1/status", "/v1/member"])
def test_nobody_gets_in_without_a_certificate(served, path):
    context = ssl.create_default_context(cafile=served.pki / "ca.pem")
    with pytest.raises(httpx.HTTPError), httpx.Client(verify=context, trust_env=False) as client:
        client.get(f"{served.base}{path}", extensions={"sni_hostname": COORDINATOR_NAME})
    with pytest.raises(httpx.HTTPError), httpx.Client(trust_env=False) as client:
        client.get(f"{served.base.replace('https', 'http')}{path}")


def test_a_certificate_of_another_run_does_not_get_in(served, tmp_path):
    make_certificates(tmp_path, ["a-0"])
    files = TlsFiles(served.pki / "ca.pem", tmp_path / "a-0.pem", tmp_path / "a-0.key")
    with (
        pytest.raises((httpx.HTTPError, ssl.SSLError)),
        httpx.Client(verify=files.client_context(), trust_env=False) as client,
    ):
        client.get(f"{served.base}/v1/status", extensions={"sni_hostname": COORDINATOR_NAME})


def test_operators_take_no_seat(served):
    tls = TlsFiles.in_directory(served.pki, "ana")
    with contextlib.closing(MembershipClient(served.url, MemberInfo.create("ana"), tls=tls)) as intruder:
        time.sleep(0.5)
        assert not intruder.is_connected
    assert [item["name"] for item in served.ask("ana", "GET", "/v1/members").json()] == ["a-0", "b-0"]


def test_a_certificate_is_for_its_own_name(served):
    tls = TlsFiles.in_directory(served.pki, "a-0")
    with contextlib.closing(MembershipClient(served.url, MemberInfo.create("c-0"), tls=tls)) as member:
        with pytest.raises(
            MembershipError, match=r"refused by the coordinator: the certificate of a-0 is not for c-0"
        ):
            member.wait_generation(0, 10)
        assert not member.is_connected
    assert [item["name"] for item in served.ask("ana", "GET", "/v1/members").json()] == ["a-0", "b-0"]


def test_members_with_certificates_do_not_talk_without(served, tmp_path):
    plain = Served(None, tmp_path)
    tls = TlsFiles.in_directory(served.pki, "a-0")
    with (
        contextlib.closing(plain),
        contextlib.closing(MembershipClient(plain.url, MemberInfo.create("a-0"), tls=tls)) as member,
    ):
        wait_until(lambda: "has no certificate" in member.why_waiting(0))
        assert not member.is_connected


def test_both_sides_say_why_certificates_kept_them_apart(served, tmp_path):
    def refused(reason):
        lines = map(json.loads, served.log.read_text().splitlines())
        return any(line["kind"] == "handshake_refused" and reason in line["reason"] for line in lines)

    make_certificates(tmp_path, ["a-0"])
    stranger = TlsFiles(served.pki / "ca.pem", tmp_path / "a-0.pem", tmp_path / "a-0.key")
    for url, tls, told, noted in [
        (served.url, stranger, "certificates of one authority", "not of this authority"),
        (served.url.replace("wss", "ws"), None, "wants a certificate, named by FARSTEP_TLS", "speak TLS"),
    ]:
        with contextlib.closing(MembershipClient(url, MemberInfo.create("a-0"), tls=tls)) as member:
            wait_until(lambda said=told, who=member: said in who.why_waiting(0))
            assert not member.is_connected
        wait_until(lambda reason=noted: refused(reason))


def test_a_name_without_a_scheme_means_tls_for_who_has_certificates(served):
    address = served.url.removeprefix("wss://")
    tls = TlsFiles.in_directory(served.pki, "a-0")
    info = MemberInfo.create("a-0.agent")
    with contextlib.closing(MembershipClient(address, info, tls=tls, wants="observer")) as watcher:
        wait_until(lambda: watcher.is_connected)


def follow(served, name, count, headers=None):
    """Returns ids and lines of the first so many events of a stream."""
    found, last = [], ""
    with (
        served.client(name) as client,
        client.stream(
            "GET", "/v1/events/stream", headers=headers, extensions={"sni_hostname": COORDINATOR_NAME}
        ) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("id: "):
                last = line[4:]
            elif line.startswith("data: "):
                found.append((last, json.loads(line[6:])))
                if len(found) == count:
                    return found
    return found


def test_a_stream_goes_on_after_the_last_event_that_was_seen(served):
    first = follow(served, "ana", 3)
    assert [line["id"] for _, line in first] == [1, 2, 3]
    rest = follow(served, "ana", 1, {"Last-Event-ID": first[1][0]})
    assert rest == first[2:]


@pytest.mark.parametrize("last", ["another-coordinator/3", "3", "x", "/", "9" * 40])
def test_a_stream_of_another_coordinator_begins_anew(served, last):
    assert follow(served, "ana", 1, {"Last-Event-ID": last})[0][1]["id"] == 1


def test_a_stream_tells_what_happens(served):
    status = served.ask("ana", "GET", "/v1/status").json()
    newest = served.ask("ana", "GET", "/v1/events", params={"limit": 1}).json()[0]["id"]
    found = []
    headers = {"Last-Event-ID": f"{status['coordinator']}/{newest}"}
    reader = threading.Thread(target=lambda: found.extend(follow(served, "ana", 1, headers)), daemon=True)
    reader.start()
    time.sleep(0.3)
    served.members[0].event("remarkable", value=float("nan"))
    reader.join(10)
    assert [(line["kind"], line["member"], line["value"]) for _, line in found] == [
        ("remarkable", "a-0", "NaN")
    ]


def test_a_follower_that_does_not_read_blocks_nobody(tmp_path):
    made = Served(None, tmp_path)
    with contextlib.closing(made), contextlib.closing(made.member("a-0")) as member:
        other = made.member("b-0")
        member.wait_generation(0, 20)
        host, port = made.url.removeprefix("ws://").rsplit(":", 1)
        with socket.create_connection((host, int(port))) as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.sendall(f"GET /v1/events/stream HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            for number in range(300):
                member.event("big", number=number, text="x" * 20_000)
            wait_until(
                lambda: any(
                    line.get("number") == 299
                    for line in made.ask(None, "GET", "/v1/events", params={"limit": 5}).json()
                ),
                30,
            )
            began = time.monotonic()
            other.close()
            assert member.wait_generation(1, 10).number == 2
            assert time.monotonic() - began < 5
            made.child.terminate()  # and the follower does not keep it from ending
            made.child.wait(10)


def test_the_end_of_a_coordinator_with_followers_is_quiet(tmp_path):
    made = Served(None, tmp_path)
    with contextlib.closing(made):
        reader = threading.Thread(target=lambda: follow(made, None, 10**6), daemon=True)
        reader.start()
        wait_until(lambda: "coordinator_start" in made.log.read_text())
        time.sleep(0.3)
        made.child.terminate()
        _, said = made.child.communicate(timeout=10)
        reader.join(5)
    assert not reader.is_alive()
    assert said.splitlines() == ["note: --insecure: whoever can run a program on this machine can take part"]
