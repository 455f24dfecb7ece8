"""Torch's store as the communicator sees it."""

import time

import pytest

pytest.importorskip("torch")

from torch.distributed import HashStore, PrefixStore, TCPStore

from farstep.collectives.torch_backend import TorchStore


def make_stores():
    yield HashStore()
    yield PrefixStore("p", TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False))


@pytest.mark.parametrize("kind", [0, 1])
def test_a_wait_in_vain_takes_its_time_and_prints_nothing(kind, capfd):
    store = TorchStore(list(make_stores())[kind])
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no value for 'key' within 0\.2 s"):
        store.get("key", 0.2)
    assert 0.2 <= time.monotonic() - began < 1
    store.set("key", b"value\0")
    assert store.get("key", 0.0) == b"value\0"
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
