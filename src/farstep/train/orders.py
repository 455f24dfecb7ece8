"""What a rank is told when it starts, by the launcher or by the environment torchrun sets."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from farstep.fabric.errors import quoted
from farstep.train.config import RunConfig
from farstep.train.errors import ConfigError

__all__ = ["Orders", "TorchrunPlace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Everything a rank needs to take part in a run."""

    rank: int
    config: RunConfig
    control_address: tuple[str, int]
    """Where the supervisor listens."""
    token: str
    checkpoints: str | None = None
    """Folder of the run's checkpoints; None if there are none."""
    resumes: bool = False
    """Whether to go on from the newest of them."""

    def to_json(self) -> str:
        """Returns the orders as one line."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["config"] = self.config.model_dump(mode="json", exclude_none=True)
        return json.dumps(fields)

    @classmethod
    def from_json(cls, line: str) -> "Orders":
        """Reads what `to_json` wrote."""
        fields = json.loads(line)
        fields["config"] = RunConfig.model_validate(fields["config"])
        fields["control_address"] = tuple(fields["control_address"])
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunPlace:
    """This process's place in a group started by torchrun."""

    rank: int
    num_ranks: int
    master_host: str
    attempt: int
    """How often torchrun has restarted the group."""
    num_local: int
    """Ranks on this host."""
    coordinators: tuple[str, ...] = ()
    """Addresses of a coordinator that is there already."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "TorchrunPlace | None":
        """Reads the variables of torchrun; None if this process was not started by it.

        Raises:
            ConfigError: some of the variables are there, but not all or not as numbers.
        """
        if "RANK" not in environment or "WORLD_SIZE" not in environment:
            return None
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if name not in environment:
                raise ConfigError(
                    f"environment: {name} is missing, though RANK and WORLD_SIZE are set; use torchrun"
                )
        numbers = {}
        defaults = {"TORCHELASTIC_RESTART_COUNT": "0", "LOCAL_WORLD_SIZE": environment["WORLD_SIZE"]}
        for name in ("RANK", "WORLD_SIZE", *defaults):
            text = environment.get(name, defaults.get(name, ""))
            if not text.isdecimal():
                raise ConfigError(
                    f"environment: {name} = {quoted(text)}: must be a number, as torchrun sets it"
                )
            numbers[name] = int(text)
        return cls(
            rank=numbers["RANK"],
            num_ranks=numbers["WORLD_SIZE"],
            master_host=environment["MASTER_ADDR"],
            attempt=numbers["TORCHELASTIC_RESTART_COUNT"],
            num_local=numbers["LOCAL_WORLD_SIZE"],
            coordinators=tuple(environment.get("FARSTEP_COORDINATOR", "").replace(",", " ").split()),
        )

    def check(self, config: RunConfig) -> None:
        """Checks that the group has the size of the run, and a coordinator that all of it reaches.

        Raises:
            ConfigError: it has not.
        """
        if self.num_ranks != config.num_ranks:
            groups = " + ".join(f"{site.replica_groups} at {site.name}" for site in config.sites)
            raise ConfigError(
                f"environment: WORLD_SIZE = {self.num_ranks}: must be {config.num_ranks} (sites: {groups}); "
                f"start it with torchrun --nproc-per-node {config.num_ranks}"
            )
        if self.num_local != self.num_ranks and not self.coordinators:
            raise ConfigError(
                f"environment: FARSTEP_COORDINATOR is missing: only {self.num_local} of {self.num_ranks} ranks are on "
                "this host; start farstep coordinator where all reach it, and set FARSTEP_COORDINATOR and FARSTEP_TLS"
            )
