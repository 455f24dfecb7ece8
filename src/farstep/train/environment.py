"""Who this process is, as its launcher says in the environment.

Two questions are answered apart: which replica group this process belongs to, and which rank it is inside. `FARSTEP_*`
variables answer first; after them torchrun, Slurm, Kubernetes JobSet and Ray are understood as they are.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from farstep.fabric.errors import quoted
from farstep.membership.records import NAME_PATTERN
from farstep.train.errors import ConfigError

__all__ = ["Environment", "Rendezvous", "detect"]

_NAME = re.compile(f"^{NAME_PATTERN}$")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("", "0", "false", "no", "off")
SLURM_PORTS = 20_000
SLURM_FIRST_PORT = 20_000
"""Ports of replica groups inside a Slurm job, by job and group: 20000 to 39999, below what kernels give out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the ranks of a replica group find each other: the address torch calls the master's."""

    host: str
    port: int
    is_agent_store: bool = False
    """Whether the launcher serves the store there already."""
    prefix: str = ""
    """Keeps restarts and neighbours apart that share a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the launcher says.

    Attributes:
        launcher: who started this process: `torchrun`, `slurm`, `jobset`, `ray` or `local`.
        group: name of the replica group.
        site: failure domain of the replica group; empty if it does not matter.
        rank: rank inside the replica group.
        size: ranks in the replica group.
        rendezvous: where its ranks meet; None if there is only one.
        coordinators: addresses of coordinators, most wanted first; empty for a replica group that is alone.
        run: name of the run.
        tls: folder of the certificate files; None without.
        is_spare: whether this member wants to be a spare.
        member_id: identity drawn by the launcher, so that it can certify this process's death; None: drawn here.
        bind: local ports "host:port", one per plane of the network; empty: chosen by the way to the coordinator.
    """

    launcher: str
    group: str
    site: str = ""
    rank: int = 0
    size: int = 1
    rendezvous: Rendezvous | None = None
    coordinators: tuple[str, ...] = ()
    run: str = "run"
    tls: str | None = None
    is_spare: bool = False
    member_id: str | None = None
    bind: tuple[str, ...] = ()


def detect(environ: Mapping[str, str] | None = None) -> Environment:
    """Reads the environment.

    Args:
        environ: the variables; by default those of this process.

    Raises:
        ConfigError: a variable has no usable value; the message names it, its value and what is valid.
    """
    reader = _Reader(os.environ if environ is None else environ)
    launcher, base, world, place = _launcher(reader)
    ranks_per_group = reader.integer("FARSTEP_RANKS_PER_GROUP", place.ranks_per_group, least=1)
    if world % ranks_per_group:
        raise ConfigError(
            f"FARSTEP_RANKS_PER_GROUP={ranks_per_group} does not divide the {world} processes of the job; "
            "every replica group has the same number of ranks"
        )
    index, rank = divmod(place.rank, ranks_per_group)
    given = reader.text("FARSTEP_GROUP")
    name = given or base
    if world > ranks_per_group and (given or not place.is_name_of_group):
        name = f"{name}-{index}"
    if not _NAME.match(name):
        source = "FARSTEP_GROUP" if given else f"the name from {launcher}"
        raise ConfigError(
            f"{source} is {quoted(name)}; a replica group's name has letters, digits, '.', '_' and '-', at most 64"
        )
    rendezvous = None
    if ranks_per_group > 1:
        rendezvous = _rendezvous(reader, launcher, index, world // ranks_per_group)
    return Environment(
        launcher=launcher,
        group=name,
        site=reader.text("FARSTEP_SITE"),
        rank=rank,
        size=ranks_per_group,
        rendezvous=rendezvous,
        coordinators=tuple(
            part.strip() for part in reader.text("FARSTEP_COORDINATOR").split(",") if part.strip()
        ),
        run=reader.text("FARSTEP_RUN") or "run",
        tls=reader.text("FARSTEP_TLS") or None,
        is_spare=reader.flag("FARSTEP_SPARE"),
        member_id=(reader.text("FARSTEP_MEMBER_ID") or None) if world == ranks_per_group else None,
        bind=tuple(part.strip() for part in reader.text("FARSTEP_BIND").split(",") if part.strip()),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Rank in the launcher's world, and how many of its ranks share a replica by default."""

    rank: int
    ranks_per_group: int
    is_name_of_group: bool = False
    """Whether the name found belongs to this replica group, not to the whole job."""


def _launcher(reader: _Reader) -> tuple[str, str, int, _Place]:
    """Returns the launcher, a name, its world size and the place of this process in it."""
    if reader.has("TORCHELASTIC_RUN_ID") or (reader.has("RANK") and reader.has("WORLD_SIZE")):
        world = reader.integer("WORLD_SIZE", None, least=1)
        rank = reader.integer("RANK", None, least=0, most=world - 1)
        launcher, name = _names_outside(reader)
        if launcher == "local":
            launcher, run_id = "torchrun", reader.text("TORCHELASTIC_RUN_ID")
            name = _clean(run_id) if run_id not in ("", "none") else name
        # A job of torchrun fails and restarts as a whole, so by default it is one replica group.
        return launcher, name, world, _Place(rank, world)
    if reader.has("SLURM_PROCID") and reader.has("SLURM_NTASKS"):
        world = reader.integer("SLURM_NTASKS", None, least=1)
        rank = reader.integer("SLURM_PROCID", None, least=0, most=world - 1)
        per_node = _slurm_tasks_per_node(reader, world)
        # The tasks of one node share it, and fail with it.
        name = _clean(reader.text("SLURMD_NODENAME") or socket.gethostname())
        is_name_of_group = reader.integer("FARSTEP_RANKS_PER_GROUP", per_node, least=1) == per_node
        return "slurm", name, world, _Place(rank, per_node, is_name_of_group)
    launcher, name = _names_outside(reader)
    return launcher, name, 1, _Place(0, 1)


def _names_outside(reader: _Reader) -> tuple[str, str]:
    """Names by launchers that start machines or actors rather than ranks."""
    if reader.has("JOBSET_NAME"):
        parts = [reader.text("REPLICATED_JOB_NAME") or reader.text("JOBSET_NAME")]
        parts += [reader.text(name) for name in ("JOB_INDEX", "JOB_COMPLETION_INDEX") if reader.has(name)]
        if len(parts) == 1:
            raise ConfigError(
                "JOBSET_NAME is set but neither JOB_INDEX nor JOB_COMPLETION_INDEX tells the replica groups apart; "
                "pass one of them to the container, or set FARSTEP_GROUP"
            )
        return "jobset", _clean("-".join(parts))
    if reader.has("RAY_JOB_ID") or reader.has("RAY_RAYLET_PID"):
        return "ray", _clean(f"{socket.gethostname()}-{os.getpid()}")
    return "local", _clean(f"{socket.gethostname()}-{os.getpid()}")


def _slurm_tasks_per_node(reader: _Reader, world: int) -> int:
    """Tasks on every node; Slurm writes "4(x2)", or "4" for one node."""
    text = reader.text("SLURM_STEP_TASKS_PER_NODE") or reader.text("SLURM_TASKS_PER_NODE") or str(world)
    match = re.fullmatch(r"(\d+)(\(x\d+\))?", text)
    if match is None:
        raise ConfigError(
            f"SLURM_TASKS_PER_NODE={text} puts different numbers of tasks on the nodes; "
            "set FARSTEP_RANKS_PER_GROUP, or use --ntasks-per-node"
        )
    return int(match.group(1))


def _rendezvous(reader: _Reader, launcher: str, index: int, num_groups: int) -> Rendezvous:
    if reader.has("MASTER_ADDR") and reader.has("MASTER_PORT"):
        port = reader.integer("MASTER_PORT", None, least=1, most=65_535)
        attempt = reader.text("TORCHELASTIC_RESTART_COUNT") or "0"
        return Rendezvous(
            host=reader.text("MASTER_ADDR"),
            port=port,
            is_agent_store=reader.flag("TORCHELASTIC_USE_AGENT_STORE"),
            prefix=f"farstep/{attempt}/{index}",
        )
    if launcher == "slurm":
        job = reader.integer("SLURM_JOB_ID", 0, least=0)
        port = SLURM_FIRST_PORT + (job * 64 + index % 64) % SLURM_PORTS
        return Rendezvous(host="127.0.0.1", port=port, prefix=f"farstep/{index}")
    raise ConfigError(
        "a replica group of several ranks needs MASTER_ADDR and MASTER_PORT, as torchrun sets them"
    )


def _clean(text: str) -> str:
    """Makes a valid name of any text."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:48]
    return cleaned or "group"


class _Reader:
    """Variables with checks that name them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def has(self, name: str) -> bool:
        return self._environ.get(name, "") != ""

    def text(self, name: str) -> str:
        return self._environ.get(name, "").strip()

    def flag(self, name: str) -> bool:
        value = self.text(name).lower()
        if value in _TRUE or value in _FALSE:
            return value in _TRUE
        raise ConfigError(f"{name}={value}; valid: 1 or 0")

    def integer(self, name: str, default: int | None, *, least: int, most: int | None = None) -> int:
        value = self.text(name)
        if value == "" and default is not None:
            return default
        if re.fullmatch(r"\d{1,10}", value) and int(value) >= least and (most is None or int(value) <= most):
            return int(value)
        upper = "" if most is None else f" to {most}"
        raise ConfigError(f"{name}={value or '(not set)'}; valid: an integer from {least}{upper}")
