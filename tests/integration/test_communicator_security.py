"""Collectives among endpoints that show certificates."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from farstep.collectives import Communicator, CommunicatorAborted
from farstep.engine import Endpoint, EndpointProfile, Protection
from farstep.testing.memory_engine import MemoryStore
from farstep.train.run import _with_identity
from tests.integration.wiretap import identities, secured


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return identities(tmp_path_factory.mktemp("certificates"), "g0", "g1")


def reduce_over(people, names, timeout_s=20):
    profiles = [secured(EndpointProfile(), people[name], "encrypt") for name in ("g0", "g1")]
    store = MemoryStore()
    with (
        Endpoint(["127.0.0.1"], profile=profiles[0], site="x") as a,
        Endpoint(["127.0.0.1"], profile=profiles[1], site="y") as b,
        ThreadPoolExecutor(2) as pool,
    ):

        def run(rank):
            end = (a, b)[rank]
            communicator = Communicator(end, rank=rank, size=2, store=store, identities=names)
            try:
                values = np.arange(100_000, dtype=np.float32) * (rank + 1)
                communicator.all_reduce(values, timeout_s=timeout_s)
                inbox = np.zeros(7, np.int64)
                if rank:
                    communicator.send(np.arange(7), 0, 3, timeout_s=20)
                else:
                    communicator.receive(inbox, 1, 3, timeout_s=20)
                    assert inbox.tolist() == list(range(7))
                return (
                    values,
                    {c.protection for c in end.connections},
                    {c.peer_identity for c in end.connections},
                )
            except BaseException:
                communicator.abort("it failed")
                raise
            finally:
                communicator.close()

        return [future.result() for future in [pool.submit(run, rank) for rank in range(2)]]


def test_ranks_of_two_sites_reduce_under_encryption(people):
    for rank, (values, protections, names) in enumerate(reduce_over(people, ["g0", "g1"])):
        assert np.array_equal(values, np.arange(100_000, dtype=np.float32) * 3)
        assert protections == {Protection.ENCRYPT}
        assert names == {("g1", "g0")[rank]}


def test_a_rank_that_is_somebody_else_is_refused(people):
    with pytest.raises(CommunicatorAborted, match="certificate of 'g1', expected was that of 'g7'"):
        reduce_over(people, ["g0", "g7"], timeout_s=0.3)
    with pytest.raises(ValueError, match="1 identities and 2 ranks"):
        reduce_over(people, ["g0"])


def test_a_member_with_certificates_shows_them_to_its_peers(people):
    from farstep.train.environment import Environment

    folder = str(people["g0"].authority.parent)
    environment = Environment(
        launcher="none",
        group="g0",
        site="x",
        rank=0,
        size=1,
        rendezvous=None,
        coordinators=(),
        run="r",
        tls=folder,
    )
    made = _with_identity(None, environment)
    assert made is not None
    assert made.security.identity == people["g0"]
    own = secured(EndpointProfile(), people["g1"], "off")
    assert _with_identity(own, environment) is own
