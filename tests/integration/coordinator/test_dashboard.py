"""The dashboard in a real browser: a run that loses members and its coordinator, hostile names, small screens."""

import contextlib
import re
from urllib.parse import urlsplit

import pytest

from farstep.membership import MemberInfo
from farstep.membership.client import MembershipClient
from tests.integration.coordinator.browser import chromium
from tests.integration.coordinator.processes import MEMBER, Process, free_port, wait_until
from tests.integration.coordinator.served import Served

SCRIPT = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>'

FIGURES = {
    "step_time_ns": 24e6,
    "step_p50_ns": 23e6,
    "step_p99_ns": 31e6,
    "step_max_ns": 95e6,
    "wait_ns": 4e6,
    "loss": 2.5,
    "tx_bytes": 3e9,
    "rx_bytes": 2.9e9,
    "retransmitted_packets": 17.0,
    "plane.0.tx_bytes": 2e9,
    "plane.0.good": 31.0,
    "plane.0.bad": 1.0,
}


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


class Run:
    """A run of two members in this process and one that can be killed, with its coordinator's page."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.stack = contextlib.ExitStack()
        self.served = Served(None, folder, port=self.port, groups=3)
        self.members = [self.member("a-0", "west"), self.member("b-0", "east")]
        self.victim = Process(
            MEMBER,
            {"coordinators": self.served.url, "name": "c-0", "wants": "seat", "hogs": 0, "forks": False},
        )
        self.members[0].wait_generation(0, 30)
        self.progress(100)

    def member(self, name, site, wants="seat"):
        info = MemberInfo.create(name, site=site, labels={"note": SCRIPT}).model_copy(update={"process": ""})
        client = MembershipClient(self.served.url, info, wants=wants)
        client.report_progress(0)
        self.stack.callback(client.close)
        return client

    def progress(self, step):
        for member in self.members:
            member.report_progress(step, figures=FIGURES)

    def restart_coordinator(self):
        self.served.close()
        self.served = Served(None, self.folder, port=self.port, groups=3)

    def close(self):
        self.stack.close()
        self.victim.close()
        self.served.close()


@pytest.fixture
def run(tmp_path, browser):
    yield from started(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory, browser):
    yield from started(tmp_path_factory.mktemp("shared"))


def started(folder):
    made = Run(folder)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def opened(browser, url, *, width=1300, scheme="light"):
    """Opens a page and makes sure that it has no error of its own and asks nobody else."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    errors, foreign = [], []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda said: (
            errors.append(said.text)
            if said.type == "error" and "ERR_" not in said.text  # of a coordinator that is away
            else None
        ),
    )
    page.on("request", lambda asked: foreign.append(asked.url))
    try:
        page.goto(url, wait_until="load")
        yield page
        assert errors == []
        host = urlsplit(url).netloc
        assert [asked for asked in foreign if urlsplit(asked).netloc not in (host, "")] == []
    finally:
        page.close()


def text(page, selector):
    return page.locator(selector).inner_text()


def shows(page, selector, pattern, timeout_s=20):
    """Waits until an element's text matches."""
    page.wait_for_function(
        "([where, what]) => new RegExp(what, 's').test(document.querySelector(where)?.innerText || '')",
        arg=[selector, pattern],
        timeout=timeout_s * 1000,
    )


def rows(page, table):
    return [
        [cell.inner_text() for cell in row.locator("td").all()]
        for row in page.locator(f"#{table} tbody tr").all()
    ]


def test_a_loss_and_a_new_coordinator_are_seen(run, browser):
    with opened(browser, run.served.base) as page:
        shows(page, "#members", "a-0.*b-0.*c-0")
        shows(page, "#facts", r"Step\s+100.*P50\s+23\.0 ms.*P100\s+95\.0 ms.*2\.5000")
        assert re.match(r"generation 1: the run begins", text(page, "#subtitle"))
        assert [row[:4] for row in rows(page, "members")][:2] == [
            ["0", "a-0", "west", "training"],
            ["1", "b-0", "east", "training"],
        ]
        assert {row[0] for row in rows(page, "sites")} >= {"west", "east"}
        assert rows(page, "planes") == [["0", "4.0 GB", "62", "2"]]
        page.wait_for_function("() => document.querySelectorAll('#steps path').length === 3")
        run.victim.kill()
        shows(page, "#subtitle", "generation 2: ")
        shows(page, "#failures", r"c-0: .*generation 2: .*c-0")
        assert len(rows(page, "members")) == 2
        (generation, first) = rows(page, "generations")
        assert (generation[1], generation[2], first[1]) == ("2", "urgent", "1")
        assert page.locator("#steps text", has_text="▲").count() >= 1

        run.served.close()
        shows(page, "#banner", "coordinator has not answered")
        run.restart_coordinator()
        page.wait_for_function("() => document.querySelector('#banner').hidden", timeout=20_000)
        shows(page, "#events", "generation_learned")
        shows(page, "#failures", "c-0")  # what the earlier one told is still there
        run.progress(200)
        shows(page, "#facts", r"Step\s+200")
        run.members[1].leave("maintenance")
        shows(page, "#subtitle", "generation 3: ")
        assert rows(page, "generations")[0][2] == "planned"


def test_what_members_say_stays_text(run, browser):
    run.members[0].event("straggler", reason=SCRIPT)
    run.members[0].event(SCRIPT[:60], reason=SCRIPT)
    run.members[0].report_failure(1, ["c-0"], SCRIPT)
    with opened(browser, run.served.base) as page:
        shows(page, "#suspects", re.escape("onerror"))
        shows(page, "#failures", "<script>")
        run.members[1].leave(SCRIPT)  # not before: the generation without it would answer the report
        shows(page, "#generations", "planned.*<script>")
        shows(page, "#events", "<img src=x")
        page.wait_for_timeout(500)
        assert page.evaluate("window.hacked") is None
        assert page.locator("img").count() == 0
        assert page.locator("main script").count() == 0


def test_agents_are_no_groups_of_their_site(run, browser):
    run.member("a-0.agent", "west", wants="observer")
    with opened(browser, run.served.base) as page:
        shows(page, "#members", r"a-0\.agent.*observer")
        assert {row[0]: row[1] for row in rows(page, "sites")}.items() >= {"west": "1", "east": "1"}.items()


def test_pages_fit_the_screen(shared, browser):
    shared.members[0].event("long", reason="x" * 300, path="/a" * 200)
    for path, ready in (("/", "#members tbody tr"), ("/docs", "#models section")):
        for width, scheme in ((1300, "light"), (390, "dark"), (390, "light"), (320, "dark")):
            with opened(browser, f"{shared.served.base}{path}", width=width, scheme=scheme) as page:
                page.wait_for_selector(ready)
                page.wait_for_timeout(600)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
                background = page.evaluate("getComputedStyle(document.body).backgroundColor")
                red = int(re.findall(r"\d+", background)[0])
                assert (red > 200) == (scheme == "light")


def test_the_filter_shows_one_kind(shared, browser):
    with opened(browser, shared.served.base) as page:
        shows(page, "#events", "member_joined")
        page.select_option("#filter", "generation")
        wait_until(lambda: {row[2] for row in rows(page, "events")} == {"generation"})


def test_the_interface_page_lists_every_route(shared, browser):
    with opened(browser, f"{shared.served.base}/docs") as page:
        shows(page, "#operations", "POST /v1/members/{name}/drain.*PATCH /v1/config")
        shows(page, "#models", "MemberStatus.*silent_s")
