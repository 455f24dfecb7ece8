"""A fabric of network namespaces: built, looked at, and taken down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from farstep.fabric.channels import ChannelState
from farstep.fabric.errors import ConfigError, names, quoted
from farstep.fabric.topology.model import Topology
from farstep.lab.client import EmulatorClient, EmulatorError
from farstep.lab.fabric.ecmp import changes, ecmp_routes
from farstep.lab.fabric.errors import LabError
from farstep.lab.fabric.features import check_machine, try_features
from farstep.lab.fabric.impairments import Features, LinkState, marking_rules, shaping
from farstep.lab.fabric.keeper import CONTROL, NAMESPACES
from farstep.lab.fabric.keeping import KeeperStart, end_processes, namespace_of, processes_in
from farstep.lab.fabric.options import RATE_SHAPED_MBPS_MAX, LabOptions
from farstep.lab.fabric.places import LabRecord, check_name, lab_names, lock
from farstep.lab.fabric.shell import NETNS, Shell, is_privileged
from farstep.lab.fabric.wiring import MAC, SLUG, Cable, FabricWiring

__all__ = ["ADDRESSES", "FabricLab", "carried_state", "find_lab", "remove_unrecorded", "uninterrupted"]

ADDRESSES = "addresses.json"
"""The address plan, in the folder of a lab, for programs that run in it."""

NAME_VARIABLE = "FARSTEP_LAB"
"""Names the lab that a command runs in, and the one that commands are about."""

PREFIX = "farstep-"
"""What the namespaces of every lab begin with."""

Tell = Callable[[str], None]


def find_lab(name: str | None = None) -> FabricLab:
    """Returns a lab that is up, or was left half built.

    Args:
        name: which; None: the one that the environment names, or the only one there is.

    Raises:
        LabError: there is no such lab, or several and no name.
    """
    known = lab_names()
    name = os.environ.get(NAME_VARIABLE) if name is None else name
    if name is None:
        if len(known) != 1:
            raise LabError(f"which lab? there is: {names(known)}" if known else "there is no lab")
        name = known[0]
    return FabricLab(LabRecord.load(check_name(name)))


def remove_unrecorded(name: str) -> bool:
    """Removes the namespaces of a lab whose record is lost, with what runs in them; returns False if there are none.

    Raises:
        LabError: another command is changing the lab, or they cannot be removed.
    """
    prefix = f"{PREFIX}{check_name(name)}-"
    if not _namespace_files(prefix):
        return False
    with lock(name), uninterrupted():
        _remove_namespaces(prefix)
    return True


class FabricLab:
    """A lab, as its record describes it.

    Args:
        record: of the lab.
    """

    def __init__(self, record: LabRecord) -> None:
        self.record = record
        self.wiring = FabricWiring(record.topology, record.options)
        self.shell = Shell(
            f"{PREFIX}{record.name}-",
            keeper_pid=record.keeper_pid if record.is_rootless else None,
            folder=record.folder / NAMESPACES if record.is_rootless else None,
        )

    @property
    def name(self) -> str:
        """Name of the lab."""
        return self.record.name

    @property
    def features(self) -> Features:
        """What the machine can do, as found when the lab was built."""
        table = json.loads((self.record.folder / "features.json").read_text(encoding="utf-8"))
        return Features(**table)

    # -- building -------------------------------------------------------------------------------------------

    @classmethod
    def up(
        cls,
        topology: Topology,
        *,
        name: str = "lab",
        options: LabOptions | None = None,
        delay: Literal["auto", "netem", "tunnel", "none"] = "auto",
        is_rootless: bool | None = None,
    ) -> FabricLab:
        """Builds a lab. What was built is taken down again if it fails, or is interrupted.

        Args:
            topology: the network.
            name: of the lab; several can be up under different names.
            options: how the network is emulated.
            delay: who holds packets back on long links, instead of what `options` say; `auto`: the kernel, if it can.
            is_rootless: whether to do without root's rights; None: unless we have them.

        Raises:
            ConfigError: the network cannot be addressed or is too large, or a value cannot be used.
            LabError: the machine cannot, or there is such a lab.
        """
        check_name(name)
        if delay not in ("auto", "netem", "tunnel", "none"):
            raise ConfigError(f"delay = {quoted(delay)}: valid: auto, netem, tunnel, none")
        options = LabOptions() if options is None else options
        wiring = FabricWiring(topology, options)
        check_machine()
        rootless = not is_privileged() if is_rootless is None else is_rootless
        with lock(name):
            if name in lab_names():
                raise LabError(f"lab {quoted(name)} exists; farstep lab down --name {name} takes it down")
            left = [] if rootless else _namespace_files(f"{PREFIX}{name}-")
            if left:
                raise LabError(
                    f"there are namespaces of a lab {quoted(name)} that is not recorded here, such as {left[0].name};"
                    f" farstep lab down --name {name} removes them"
                )
            record = LabRecord(
                name=name, topology=topology, options=options, is_rootless=rootless, created_s=time.time()
            )
            record.save()
            build = _Build(record, wants_delay=delay, has_parallels=_has_parallels(wiring))
            try:
                return build.run()
            except BaseException:
                with uninterrupted():
                    build.abandon()
                raise

    def down(self) -> None:
        """Takes the lab down: what runs in it, its namespaces and cables, and its record.

        Raises:
            LabError: another command is changing it.
        """
        with lock(self.name), uninterrupted():
            _take_down(self.record, self.shell)

    # -- while it is up ---------------------------------------------------------------------------------------

    def command(self, nic: int, command: Sequence[str], *, folder: str | None = None) -> list[str]:
        """Returns a command as it is run at a NIC.

        Args:
            nic: where.
            command: program and arguments.
            folder: where it runs; None: the current folder.

        Raises:
            ConfigError: there is no such NIC.
            LabError: the lab is not up.
        """
        if not 0 <= nic < self.record.topology.num_nics:
            raise ConfigError(f"nic = {nic}: no such NIC; valid: 0 to {self.record.topology.num_nics - 1}")
        self.expect_up()
        return self.shell.for_user(self.wiring.slugs[nic], command, os.getcwd() if folder is None else folder)

    def environment(self, nic: int) -> dict[str, str]:
        """Returns what a command at a NIC finds in its environment beside ours."""
        return {
            NAME_VARIABLE: self.name,
            "FARSTEP_LAB_NIC": str(nic),
            "FARSTEP_LAB_ADDRESSES": str(self.record.folder / ADDRESSES),
        }

    def popen(self, nic: int, command: Sequence[str], **arguments: Any) -> subprocess.Popen[Any]:
        """Starts a command at a NIC; further arguments are those of `subprocess.Popen`.

        Raises:
            ConfigError: there is no such NIC.
            LabError: the lab is not up.
        """
        environment = {**(arguments.pop("env", None) or os.environ), **self.environment(nic)}
        return subprocess.Popen(self.command(nic, command), env=environment, **arguments)

    def run(self, nic: int, command: Sequence[str], **arguments: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command at a NIC and returns what it said; arguments are those of `subprocess.run`.

        Raises:
            ConfigError: there is no such NIC.
            LabError: the lab is not up.
        """
        environment = {**os.environ, **self.environment(nic)}
        return subprocess.run(
            self.command(nic, command), env=environment, capture_output=True, text=True, **arguments
        )

    def expect_up(self) -> None:
        """Refuses a lab that is not all there.

        Raises:
            LabError: saying what is the matter.
        """
        reason = self.why_not_up()
        if reason is not None:
            raise LabError(
                f"lab {quoted(self.name)} {reason}; farstep lab down --name {self.name} clears it away"
            )

    def why_not_up(self) -> str | None:
        """Returns what is the matter with a lab that is not all there; None if nothing is."""
        if not self.record.is_up:
            return "was left half built"
        if self.record.keeper_pid is not None and not self.record.keeper_is_alive:
            return "has lost its keeper"
        if not self.record.is_rootless:
            missing = [slug for slug in self.wiring.slugs if not Path(self.shell.path(slug)).exists()]
            if missing:
                return f"has lost {len(missing)} of its namespaces, such as {self.shell.name(missing[0])}"
        return None

    def processes(self) -> list[int]:
        """Returns the processes that run in the lab, without its keeper."""
        return _processes(self.record, self.shell)

    def counters(self) -> dict[int, tuple[int, int]]:
        """Returns packets and bytes that each directed link has carried, as counted where they left."""
        found = {}
        for node, slug in enumerate(self.wiring.slugs):
            listed = json.loads(self.shell.run(self.shell.inside(slug, ["ip", "-s", "-j", "link"])))
            sent = {item["ifname"]: item["stats64"]["tx"] for item in listed}
            for link in map(int, self.record.topology.out_links(node)):
                counts = sent[self.wiring.interfaces[link]]
                found[link] = (int(counts["packets"]), int(counts["bytes"]))
        return found

    @contextlib.contextmanager
    def keeper(self) -> Iterator[EmulatorClient | None]:
        """Connects to the process that carries packets over links with delay; None if there is none.

        Raises:
            LabError: it does not answer.
        """
        if self.record.keeper_pid is None:
            yield None
            return
        try:
            with EmulatorClient(str(self.record.folder / CONTROL)) as client:
                yield client
        except EmulatorError as error:
            raise LabError(f"the keeper of lab {quoted(self.name)} does not answer: {error}") from error


class _Build:
    """A lab being built."""

    def __init__(self, record: LabRecord, *, wants_delay: str, has_parallels: bool) -> None:
        self.record = record
        self._wants_delay = wants_delay
        self._has_parallels = has_parallels
        self._start: KeeperStart | None = None

    def run(self) -> FabricLab:
        if self.record.is_rootless:
            self._start_keeper()
        lab = FabricLab(self.record)
        features = try_features(lab.shell, needs_adjacency=self._has_parallels)
        (self.record.folder / "features.json").write_text(json.dumps(asdict(features)), encoding="utf-8")
        delay: Any = (
            ("netem" if features.netem else "tunnel") if self._wants_delay == "auto" else self._wants_delay
        )
        if delay == "netem" and not features.netem:
            raise ConfigError('delay = "netem": this kernel has none; valid: auto, tunnel, none')
        self.record = self.record.with_changes(options=replace(self.record.options, delay=delay))
        lab = FabricLab(self.record)
        carried = [cable for cable in lab.wiring.cables if cable.is_carried]
        if carried and self._start is None:
            self._start_keeper()
            lab = FabricLab(self.record)
        self._namespaces(lab)
        self._cables(lab, carried)
        self._nodes(lab, features)
        _write_addresses(lab)
        if self._start is not None:
            self._start.stay()
        self.record = self.record.with_changes(is_up=True)
        return FabricLab(self.record)

    def abandon(self) -> None:
        """Takes down what there is."""
        if self._start is not None:
            self._start.abandon()
        _take_down(self.record, FabricLab(self.record).shell)

    def _start_keeper(self) -> None:
        self._start = KeeperStart(self.record.folder, is_rootless=self.record.is_rootless)
        self.record = self.record.with_changes(keeper_pid=self._start.pid, keeper_start=self._start.start)

    def _namespaces(self, lab: FabricLab) -> None:
        shell = lab.shell
        if not self.record.is_rootless:
            lines = [f"netns add {shell.name(slug)}" for slug in lab.wiring.slugs]
            shell.run(["ip", "-batch", "-"], text="\n".join(lines))
            return
        script = 'for f; do : > "$f" && unshare --net="$f" true || exit 1; done'
        files = [shell.path(slug) for slug in lab.wiring.slugs]
        shell.run(shell.outside(["sh", "-c", script, "sh", *files]))

    def _cables(self, lab: FabricLab, carried: Sequence[Cable]) -> None:
        shell, slugs = lab.shell, lab.wiring.slugs
        lines = []
        for cable in lab.wiring.cables:
            if not cable.is_carried:
                one, other = cable.ends
                lines.append(
                    f"link add {one.interface} netns {shell.path(slugs[one.node])} address {MAC} type veth"
                    f" peer name {other.interface} netns {shell.path(slugs[other.node])} address {MAC}"
                )
        shell.run(shell.outside(["ip", "-batch", "-"]), text="\n".join(lines))
        if not carried:
            return
        with lab.keeper() as keeper:
            assert keeper is not None
            for cable in carried:
                keeper.request(
                    "cable",
                    number=cable.number,
                    ends=[
                        {"netns": shell.path(slugs[end.node]), "interface": end.interface}
                        for end in cable.ends
                    ],
                    states=[
                        asdict(carried_state(cable, link, LinkState(), self.record.options))
                        for link in (2 * cable.number, 2 * cable.number + 1)
                    ],
                )

    def _nodes(self, lab: FabricLab, features: Features) -> None:
        wiring, shell = lab.wiring, lab.shell
        nodes = dict(enumerate(wiring.slugs))
        routes = changes(wiring, {}, ecmp_routes(wiring))
        shell.sysctl({slug: wiring.sysctls(node) for node, slug in nodes.items()})
        shell.ip(
            {
                slug: [*wiring.setup(node), *wiring.usid_routes(node), *routes.get(node, ())]
                for node, slug in nodes.items()
            }
        )
        # Not every kernel has MPTCP, and a lab is of use without.
        shell.ip({slug: wiring.mptcp(node) for node, slug in nodes.items()}, force=True)
        queues: dict[str, list[str]] = {}
        marks: dict[str, list[str]] = {}
        for cable in wiring.cables:
            for link in (2 * cable.number, 2 * cable.number + 1):
                slug = nodes[cable.sender(link).node]
                queue = shaping(cable, link, LinkState(), self.record.options)
                queues.setdefault(slug, []).extend([queue] if queue is not None else [])
                rules = marking_rules(cable, link, LinkState(), self.record.options)
                marks.setdefault(slug, []).extend([rules] if rules else [])
        shell.tc(queues)
        if features.marks:
            shell.nft(marks)


def carried_state(cable: Cable, link: int, state: LinkState, options: LabOptions) -> ChannelState:
    """Returns what a carried cable does to packets in one direction."""
    rate_mbps = cable.rates_mbps[link & 1] * state.rate_share
    is_shaped = rate_mbps <= RATE_SHAPED_MBPS_MAX
    return ChannelState(
        is_down=state.is_down,
        is_detected=state.is_signalled,
        rate_mbps=rate_mbps if is_shaped else None,
        delay_ms=max(0.0, cable.delays_ms[link & 1] + state.delay_ns / 1e6),
        loss_percent=100 * state.loss,
        queue_limit_bytes=options.queue_bytes(rate_mbps) if is_shaped else None,
        ecn_threshold_bytes=options.mark_bytes(rate_mbps) if is_shaped and options.mark_ms else None,
    )


def _has_parallels(wiring: FabricWiring) -> bool:
    ends = [tuple(sorted(end.node for end in cable.ends)) for cable in wiring.cables]
    return len(set(ends)) < len(ends)


def _write_addresses(lab: FabricLab) -> None:
    plan = lab.wiring.plan
    hosts = [
        {
            "nic": nic,
            "leaf": place.leaf,
            "downlink": place.downlink,
            "address": str(plan.host_address(nic)),
            "ports": [
                {
                    "plane": plane,
                    "interface": lab.wiring.ports(nic)[plane],
                    "address": str(plan.host_address(nic, plane)),
                    "arrival": str(plan.arrival(nic, plane)),
                }
                for plane in range(plan.planes)
            ],
        }
        for nic, place in enumerate(plan.places)
    ]
    table = {"block": plan.block, "planes": plan.planes, "uplinks": plan.uplinks, "hosts": hosts}
    (lab.record.folder / ADDRESSES).write_text(json.dumps(table, indent=1), encoding="utf-8")


def _processes(record: LabRecord, shell: Shell) -> list[int]:
    if record.is_rootless:
        user = namespace_of(f"/proc/{record.keeper_pid}", "user") if record.keeper_is_alive else None
        return [pid for pid in processes_in([user], "user") if pid != record.keeper_pid]
    return _processes_at(_namespace_files(shell.prefix))


def _processes_at(files: Sequence[Path]) -> list[int]:
    return processes_in([namespace_of(str(path)) for path in files], "net")


def _namespace_files(prefix: str) -> list[Path]:
    """Returns the files of all namespaces of a lab, whatever its record says."""
    if not NETNS.is_dir():
        return []
    return [
        path
        for path in NETNS.iterdir()
        if path.name.startswith(prefix) and SLUG.fullmatch(path.name.removeprefix(prefix))
    ]


def _take_down(record: LabRecord, shell: Shell) -> None:
    """Removes all there is of a lab, also of one that was left half built."""
    keeper = [record.keeper_pid] if record.keeper_pid is not None and record.keeper_is_alive else []
    end_processes(_processes(record, shell))
    end_processes(keeper)
    for pid in keeper:
        with contextlib.suppress(ChildProcessError):  # unless another command started it
            os.waitpid(pid, os.WNOHANG)
    if not record.is_rootless:
        _remove_namespaces(shell.prefix)
    record.forget()


def _remove_namespaces(prefix: str) -> None:
    files = _namespace_files(prefix)
    end_processes(_processes_at(files))
    lines = [f"netns del {path.name}" for path in files]
    if lines:
        Shell(prefix).run(["ip", "-force", "-batch", "-"], text="\n".join(lines), check=False)
    left = _namespace_files(prefix)
    if left:
        raise LabError(f"cannot remove {', '.join(path.name for path in left)}; is this lab root's?")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Keeps Ctrl-C away from what must be finished; every step of it is bounded in time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
