"""What a rank is told when it starts."""

import pytest

from farstep.train.config import RunConfig
from farstep.train.errors import ConfigError
from farstep.train.orders import Orders, TorchrunPlace

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def place(**variables: str) -> TorchrunPlace:
    found = TorchrunPlace.from_environment({**TORCHRUN, **variables})
    assert found is not None
    return found


def test_orders_survive_their_way_to_the_rank():
    orders = Orders(
        rank=2,
        config=RunConfig(),
        control_address=("127.0.0.1", 9),
        token="ab",
        checkpoints="c",
        resumes=True,
    )
    assert Orders.from_json(orders.to_json()) == orders


def test_a_process_that_torchrun_did_not_start_has_no_place():
    assert TorchrunPlace.from_environment({"RANK": "1"}) is None


def test_ranks_on_several_hosts_need_a_coordinator():
    place(LOCAL_WORLD_SIZE="4").check(RunConfig())
    place().check(RunConfig())
    with pytest.raises(
        ConfigError, match="FARSTEP_COORDINATOR is missing: only 2 of 4 ranks are on this host"
    ):
        place(LOCAL_WORLD_SIZE="2").check(RunConfig())
    found = place(LOCAL_WORLD_SIZE="2", FARSTEP_COORDINATOR="a:7077, b:7077")
    found.check(RunConfig())
    assert found.coordinators == ("a:7077", "b:7077")


def test_a_variable_that_is_no_number_is_named():
    with pytest.raises(ConfigError, match='LOCAL_WORLD_SIZE = "two": must be a number'):
        place(LOCAL_WORLD_SIZE="two")
