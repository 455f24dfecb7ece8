"""Where the endpoint of a process comes from, and tensors as vectors."""

import pytest

torch = pytest.importorskip("torch")

from farstep.collectives import ElementType  # noqa: E402
from farstep.collectives.torch_backend import MrcOptions, process_endpoint, tensor_vector, use_endpoint  # noqa: E402
from farstep.collectives.torch_backend.process_endpoint import acquire_endpoint, release_endpoint  # noqa: E402
from farstep.engine import Endpoint  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_left_over(monkeypatch):
    for name in ("FARSTEP_PORTS", "FARSTEP_SITE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    yield
    process_endpoint.close_endpoint()


def test_groups_share_one_endpoint_and_the_last_closes_it():
    first = acquire_endpoint(MrcOptions(), 0)
    assert acquire_endpoint(MrcOptions(site="ignored"), 0) is first
    release_endpoint()
    assert first.register(bytearray(8)).length_bytes == 8
    release_endpoint()
    assert acquire_endpoint(MrcOptions(), 0) is not first


def test_an_endpoint_of_the_callers_is_used_and_left_open():
    with Endpoint(site="here") as mine:
        use_endpoint(mine)
        assert acquire_endpoint(MrcOptions(), 0) is mine
        release_endpoint()
        assert mine.register(bytearray(8)).length_bytes == 8
        use_endpoint(None)
    assert acquire_endpoint(MrcOptions(), 0) is not mine


def test_an_endpoint_cannot_be_exchanged_under_a_group():
    acquire_endpoint(MrcOptions(), 0)
    with Endpoint() as other, pytest.raises(RuntimeError, match="call use_endpoint before"):
        use_endpoint(other)


def test_options_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("FARSTEP_PORTS", "127.0.0.1:0, 127.0.0.1:0")
    monkeypatch.setenv("FARSTEP_SITE", "north")
    from_environment = acquire_endpoint(MrcOptions(), 0)
    assert (len(from_environment.ports), from_environment.site) == (2, "north")
    release_endpoint()
    explicit = acquire_endpoint(MrcOptions(ports=["127.0.0.1:0"], site="south"), 0)
    assert (len(explicit.ports), explicit.site) == (1, "south")


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost", "no.such.host.invalid"])
def test_the_address_is_that_by_which_the_master_is_reached(monkeypatch, master):
    monkeypatch.setenv("MASTER_ADDR", master)
    host, _ = acquire_endpoint(MrcOptions(), 0).ports[0]
    assert host in ("127.0.0.1", "::1")


def test_a_vector_shares_the_tensors_memory():
    tensor = torch.arange(6, dtype=torch.bfloat16)
    vector = tensor_vector(tensor)
    assert (vector.count, vector.element_type, vector.address) == (6, ElementType.BFLOAT16, tensor.data_ptr())
    assert tensor_vector(torch.zeros(3, dtype=torch.complex64)).count == 6
    assert tensor_vector(torch.zeros(3, dtype=torch.uint32), any_type=True).count == 12
    assert tensor_vector(torch.tensor(1.0)).count == 1
    assert tensor_vector(torch.empty(0)).count == 0


@pytest.mark.parametrize(
    ("tensor", "error", "words"),
    [
        (torch.zeros(3, 4).T, ValueError, "contiguous CPU tensor"),
        (torch.zeros(3, device="meta"), ValueError, "on meta"),
        (torch.zeros(3, dtype=torch.uint32), TypeError, "valid are float32"),
    ],
)
def test_what_cannot_be_a_vector_is_named(tensor, error, words):
    with pytest.raises(error, match=words):
        tensor_vector(tensor)
