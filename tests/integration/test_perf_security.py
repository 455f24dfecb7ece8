"""Measurements between ends that show certificates: the control channel is TLS, the packets are protected."""

import threading

import pytest

from farstep.engine import SecurityProfile
from farstep.perf import EndSetup, PerfClient, PerfError, PerfPlan, PerfServer
from tests.integration.wiretap import identities


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return identities(tmp_path_factory.mktemp("certificates"), "alice", "bob")


def setup(identity):
    return EndSetup(binds=("127.0.0.1",), security=SecurityProfile(identity=identity, within_site="encrypt"))


@pytest.fixture
def server(people):
    made = PerfServer("127.0.0.1", 0, setup=setup(people["alice"]))
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    yield made
    made.close()
    thread.join(20)


def test_a_measurement_under_encryption(people, server):
    result = PerfClient(*server.address, setup=setup(people["bob"])).run(
        PerfPlan(time_s=0.3, size_bytes=10_000), interval_s=None
    )
    assert result.cause == ""


def test_who_shows_no_certificate_or_another_is_refused(people, server, tmp_path):
    with pytest.raises(PerfError):
        PerfClient(*server.address, setup=EndSetup(binds=("127.0.0.1",))).run(
            PerfPlan(time_s=0.3, size_bytes=10_000)
        )
    stranger = identities(tmp_path, "bob")["bob"]
    with pytest.raises(PerfError, match="--certs has to be given at both ends"):
        PerfClient(*server.address, setup=setup(stranger)).run(PerfPlan(time_s=0.3, size_bytes=10_000))
