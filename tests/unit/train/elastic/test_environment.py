from __future__ import annotations

import pytest

from farstep.train.environment import detect
from farstep.train.errors import ConfigError

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURMD_NODENAME": "gpu-12",
}


def test_without_a_launcher_a_process_is_a_replica_group_alone() -> None:
    found = detect({})
    assert (found.launcher, found.rank, found.size, found.rendezvous) == ("local", 0, 1, None)
    assert found.coordinators == ()


def test_our_variables_come_first() -> None:
    found = detect(
        {
            "FARSTEP_COORDINATOR": "one:7077, two:7077",
            "FARSTEP_GROUP": "a-0",
            "FARSTEP_SITE": "a",
            "FARSTEP_SPARE": "1",
            "FARSTEP_RUN": "big",
            "FARSTEP_BIND": "10.0.0.1:0,10.1.0.1:0",
            "FARSTEP_MEMBER_ID": "a-0/0123abcd",
        }
    )
    assert found.coordinators == ("one:7077", "two:7077")
    assert (found.group, found.site, found.run) == ("a-0", "a", "big")
    assert found.is_spare
    assert found.bind == ("10.0.0.1:0", "10.1.0.1:0")
    assert found.member_id == "a-0/0123abcd"


def test_a_job_of_torchrun_is_one_replica_group() -> None:
    found = detect({**TORCHRUN, "FARSTEP_GROUP": "a"})
    assert (found.launcher, found.group, found.rank, found.size) == ("torchrun", "a", 3, 4)
    assert found.rendezvous is not None
    assert (found.rendezvous.host, found.rendezvous.port) == ("node7", 29500)
    assert found.rendezvous.is_agent_store
    assert "2" in found.rendezvous.prefix, "a restart must not meet what the attempt before left in the store"


def test_processes_of_torchrun_can_be_replica_groups_of_their_own() -> None:
    found = detect({**TORCHRUN, "FARSTEP_GROUP": "a", "FARSTEP_RANKS_PER_GROUP": "1"})
    assert (found.group, found.rank, found.size, found.rendezvous) == ("a-3", 0, 1, None)


def test_a_torchrun_id_names_the_replica_group() -> None:
    assert detect({**TORCHRUN, "TORCHELASTIC_RUN_ID": "site b/job 1"}).group == "site-b-job-1"


def test_the_tasks_of_a_node_are_a_replica_group_in_slurm() -> None:
    found = detect(SLURM)
    assert (found.launcher, found.group, found.rank, found.size) == ("slurm", "gpu-12", 1, 4)
    assert found.rendezvous is not None
    assert found.rendezvous.host == "127.0.0.1"


def test_replica_groups_in_slurm_can_be_smaller() -> None:
    found = detect({**SLURM, "FARSTEP_RANKS_PER_GROUP": "2"})
    assert (found.group, found.rank, found.size) == ("gpu-12-2", 1, 2)


def test_a_pod_of_a_jobset_is_a_replica_group() -> None:
    found = detect({"JOBSET_NAME": "train", "REPLICATED_JOB_NAME": "workers", "JOB_INDEX": "2"})
    assert (found.launcher, found.group, found.size) == ("jobset", "workers-2", 1)


def test_torchrun_in_a_pod_keeps_the_pods_name() -> None:
    found = detect({**TORCHRUN, "JOBSET_NAME": "train", "JOB_COMPLETION_INDEX": "1"})
    assert (found.launcher, found.group, found.size) == ("jobset", "train-1", 4)


def test_an_actor_of_ray_is_a_replica_group() -> None:
    assert detect({"RAY_JOB_ID": "01000000"}).launcher == "ray"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"FARSTEP_GROUP": "a b"}, ["FARSTEP_GROUP", '"a b"', "letters"]),
        ({"FARSTEP_SPARE": "maybe"}, ["FARSTEP_SPARE=maybe", "1 or 0"]),
        ({"FARSTEP_RANKS_PER_GROUP": "0"}, ["FARSTEP_RANKS_PER_GROUP=0", "integer from 1"]),
        ({**TORCHRUN, "FARSTEP_RANKS_PER_GROUP": "3"}, ["FARSTEP_RANKS_PER_GROUP=3", "4 processes"]),
        ({**TORCHRUN, "RANK": "4"}, ["RANK=4", "0 to 3"]),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_ADDR"]),
        ({"JOBSET_NAME": "train"}, ["JOBSET_NAME", "JOB_INDEX", "FARSTEP_GROUP"]),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4,2"}, ["4,2", "FARSTEP_RANKS_PER_GROUP"]),
    ],
)
def test_what_cannot_be_used_is_named(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        detect(environ)
    for word in words:
        assert word in str(caught.value)
