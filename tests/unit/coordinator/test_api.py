"""The REST interface without a network: answers, mistakes, and what browsers may do on behalf of other pages."""

import asyncio
import json
import math

import httpx
import pytest

from farstep.coordinator import create_app
from farstep.membership import messages as wire
from farstep.membership.effects import Note
from tests.unit.coordinator.crew import staffed_coordinator


class Client:
    """Asks an application, each time on an event loop of its own."""

    def __init__(self, app, base_url="http://127.0.0.1:7077"):
        self.app, self.base_url = app, base_url

    def request(self, method, path, **more):
        async def ask():
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url=self.base_url) as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, **more):
        return self.request("POST", path, **more)


@pytest.fixture
def staffed():
    coordinator, crew = staffed_coordinator("a-0", "b-0")
    return coordinator, crew, create_app(coordinator)


@pytest.fixture
def client(staffed):
    return Client(staffed[2])


def test_status_members_generations_and_events(staffed, client):
    _, crew, app = staffed
    for note in crew.notes:
        app.state.journal.note(note)
    status = client.get("/v1/status").json()
    assert (status["generation"]["number"], status["generation"]["seats"]) == (1, ["a-0", "b-0"])
    assert [member["name"] for member in client.get("/v1/members").json()] == ["a-0", "b-0"]
    (generation,) = client.get("/v1/generations").json()
    assert (generation["number"], generation["members"]) == (1, ["a-0", "b-0"])
    events = client.get("/v1/events").json()
    assert [line["kind"] for line in events] == [note.kind for note in crew.notes]
    newest = client.get("/v1/events", params={"since": events[-2]["id"]}).json()
    assert newest == events[-1:]
    joined = client.get("/v1/events", params={"kind": "member_joined"}).json()
    assert [line["member"] for line in joined] == ["a-0", "b-0"]


def test_whatever_a_member_reports_the_answer_is_json(staffed, client):
    _, crew, app = staffed
    crew.say(1, wire.Heartbeat(step=1, figures={"loss": math.nan}))
    app.state.journal.note(Note("odd", {"a": math.inf, "b": {"c": ["\ud800"]}}, "a-0"))
    for path in ("/v1/status", "/v1/members", "/v1/events", "/v1/generations", "/openapi.json"):
        answer = client.get(path)
        assert answer.status_code == 200, path
        json.loads(answer.content, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize(
    ("query", "field"),
    [("since=-1", "since"), ("since=x", "since"), ("limit=0", "limit"), ("limit=10001", "limit")],
)
def test_a_wrong_question_is_told(client, query, field):
    answer = client.get(f"/v1/events?{query}")
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][-1] == field


def test_commands_are_carried_out_and_written_down(staffed, client):
    app = staffed[2]
    answer = client.post("/v1/members/b-0/drain", json={"reason": "upgrade"})
    assert (answer.status_code, answer.json()) == (200, {"done": "b-0 is being drained: upgrade"})
    answer = client.request("PATCH", "/v1/config", json={"spares": 2})
    assert answer.json()["spares"] == 2
    who = [line for line in app.state.journal.since(0) if line["kind"] == "operator"]
    assert [line["did"] for line in who] == ["b-0 is being drained: upgrade", "changed {'spares': 2}"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/v1/members/x/drain", {}, 409, "no member x"),
        ("POST", "/v1/members/a-0/drain", {"why": "x"}, 422, "extra"),
        ("POST", "/v1/members/a-0/evict", {"reason": "x" * 501}, 422, "500"),
        ("POST", "/v1/override", {"generation": 1, "drop": ["b-0"], "is_sure": False}, 409, "is_sure"),
        ("POST", "/v1/override", {"generation": 2, "drop": ["b-0"], "is_sure": True}, 409, "not the current"),
        ("POST", "/v1/override", {"generation": 1, "drop": ["b-0"], "is_sure": True}, 409, "is here"),
        ("POST", "/v1/override", {"generation": 1, "drop": [], "is_sure": True}, 422, "at least 1"),
        ("PATCH", "/v1/config", {}, 422, "min_groups"),
        ("PATCH", "/v1/config", {"max_groups": 0}, 422, "greater than or equal to 1"),
        ("PATCH", "/v1/config", {"min_groups": 9}, 422, "is below min_groups"),
        ("PATCH", "/v1/config", {"run": "other"}, 422, "extra"),
    ],
)
def test_a_command_that_cannot_be_carried_out_says_why(client, method, path, body, status, says):
    answer = client.request(method, path, json=body)
    assert answer.status_code == status
    assert says in json.dumps(answer.json()["detail"]).lower()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_long_is_refused(client, is_chunked):
    async def pieces():
        for _ in range(100):
            yield b" " * 1000

    answer = client.post("/v1/members/b-0/evict", content=pieces() if is_chunked else b" " * 100_000)
    assert answer.status_code == 413
    assert "65,536" in answer.json()["detail"]


def test_a_command_may_name_all_members(client):
    body = {"generation": 1, "drop": [f"{'n' * 50}-{number}" for number in range(1024)], "is_sure": True}
    assert client.post("/v1/override", json=body).status_code == 409


PATHS = ["/", "/docs", "/docs.js", "/dashboard.js", "/openapi.json", "/v1/status", "/v1/events", "/metrics"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:7077"},
        {"Origin": "http://127.0.0.1:7078"},
        {"Host": "rebound.evil.example"},
        {"Host": "127.0.0.1.evil.example:7077"},
        {"Host": "["},
        {"Host": ""},
    ],
)
def test_foreign_pages_are_refused(client, path, headers):
    assert client.get(path, headers=headers).status_code in (403, 421)


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}])
def test_foreign_pages_command_nothing(staffed, client, headers):
    answer = client.post("/v1/members/b-0/evict", json={}, headers=headers)
    assert answer.status_code in (403, 421)
    assert all(item.evicted is None for item in staffed[0].proposer.people())


@pytest.mark.parametrize("host", ["localhost:7077", "127.0.0.1", "[::1]:9", "127.0.0.2:7077", "LOCALHOST"])
def test_names_of_this_machine_are_welcome(client, host):
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert client.get("/v1/status", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_come_from_here_alone(client, path):
    page = client.get(path)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "://" not in page.text
    for name in ("/dashboard.css", "/dashboard.js" if path == "/" else "/docs.js"):
        assert name in page.text
        assert client.get(name).status_code == 200


def test_the_interface_is_described_in_words(client):
    described = client.get("/openapi.json").json()
    assert {"/v1/status", "/v1/members/{name}/drain", "/v1/override", "/v1/config"} <= set(described["paths"])
    operations = [item for methods in described["paths"].values() for item in methods.values()]
    assert all(item.get("summary") for item in operations)
    assert described["components"]["schemas"]["Override"]["properties"]["is_sure"]["description"]
