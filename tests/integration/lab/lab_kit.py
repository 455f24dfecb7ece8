"""What tests of real labs share: whether there can be one, traffic along given addresses, and what is left behind."""

import contextlib
import ipaddress
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from farstep.fabric import Topology
from farstep.lab.fabric import FabricLab
from farstep.lab.fabric.places import FOLDER_VARIABLE
from farstep.lab.fabric.shell import is_privileged, missing_commands

WAIT_S = 30.0

QUIET = 20
"""Packets that a kernel sends by itself over a link during a test: a few reports of multicast listeners."""

ORDINARY_USER = 65534


def why_no_lab() -> str | None:
    if sys.platform != "linux":
        return "labs are for Linux"
    if not is_privileged():
        return "needs the rights of root over networks"
    missing = missing_commands()
    return f"not installed: {', '.join(missing)}" if missing else None


needs_lab = pytest.mark.skipif(why_no_lab() is not None, reason=str(why_no_lab()))


def why_no_rootless_lab() -> str | None:
    if shutil.which("setpriv") is None:
        return "not installed: setpriv"
    tried = subprocess.run(
        [*as_ordinary_user(), "unshare", "--user", "--map-root-user", "--net", "true"],
        capture_output=True,
        check=False,
    )
    return None if tried.returncode == 0 else "the kernel lets users make no user namespaces"


def as_ordinary_user() -> list[str]:
    """What a command begins with to be run without rights, with the interpreter in reach.

    Where it is below a folder that is root's alone, a private view of the file system shows nothing else of that.
    """
    drop = f"exec setpriv --reuid {ORDINARY_USER} --regid {ORDINARY_USER} --clear-groups"
    drop += ' env HOME=/ PYTHONDONTWRITEBYTECODE=1 "$@"'
    base = Path(sys.base_prefix)
    closed = next((parent for parent in reversed(base.parents) if not parent.stat().st_mode & 0o001), None)
    if closed is None:
        return ["sh", "-c", drop, "sh"]
    show = (
        f'kept=$(mktemp -d) && mount --bind "{base}" "$kept" && mount -t tmpfs tmpfs "{closed}"'
        f' && chmod 755 "{closed}" && mkdir -p "{base}" && mount --bind "$kept" "{base}"'
        ' && umount "$kept" && rmdir "$kept"'
    )
    return ["unshare", "--mount", "sh", "-c", f"{show} && {drop}", "sh"]


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A folder for the records of labs, with a name short enough for a socket in it."""
    folder = Path(tempfile.mkdtemp(prefix="fs-lab-"))
    before = os.environ.get(FOLDER_VARIABLE)
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        yield folder
    finally:
        if before is None:
            del os.environ[FOLDER_VARIABLE]
        else:
            os.environ[FOLDER_VARIABLE] = before
        shutil.rmtree(folder, ignore_errors=True)


def lab_name(what: str) -> str:
    """A name no other test run on this machine uses."""
    return f"t{os.getpid()}_{what}"[:24]


@contextlib.contextmanager
def built(topology: Topology, what: str) -> Iterator[FabricLab]:
    """A lab for tests, with a folder of its own."""
    with own_folder():
        lab = FabricLab.up(topology, name=lab_name(what))
        try:
            yield lab
        finally:
            lab.down()


# ---- traffic --------------------------------------------------------------------------------------------------

RECEIVER = r"""
import json, select, socket, sys, time
NO_CHECK6_RX, TCLASS = 102, 66
port, tail = int(sys.argv[1]), 0.3
box = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
box.setsockopt(socket.IPPROTO_UDP, NO_CHECK6_RX, 1)
box.setsockopt(socket.IPPROTO_IPV6, TCLASS, 1)
box.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
box.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)  # whatever net.core.rmem_max says: we are root there
box.bind(("::", port))
box.setblocking(False)
print("ready", flush=True)
count = marked = size = 0
first = last = 0.0
delay = None
to, sources, ended = set(), {}, None
while True:
    wait = None if ended is None else max(0.0, ended + tail - time.monotonic())
    readable, _, _ = select.select([box] if ended is not None else [box, sys.stdin], [], [], wait)
    if sys.stdin in readable:
        ended = time.monotonic()
    if ended is not None and not readable:
        break
    while True:
        try:
            data, ancillary, _, source = box.recvmsg(65536, 256)
        except BlockingIOError:
            break
        now = time.monotonic()
        count, size, last, first = count + 1, size + len(data), now, first or now
        sources[source[1]] = sources.get(source[1], 0) + 1
        sent = float(data[:32].rstrip(b"."))
        delay = now - sent if delay is None else min(delay, now - sent)
        for _, kind, value in ancillary:
            if kind == socket.IPV6_PKTINFO:
                to.add(socket.inet_ntop(socket.AF_INET6, value[:16]))
            elif kind == 67:
                marked += value[0] & 3 == 3
        if ended is not None:
            ended = now
print(json.dumps(dict(count=count, marked=marked, bytes=size, span_s=last - first, delay_s=delay, to=sorted(to),
                      ports=sources)))
"""

SENDER = r"""
import json, socket, sys, time
NO_CHECK6_TX, TCLASS = 101, 67
order = json.loads(sys.argv[1])
refused, reason = 0, ""
boxes = []
for number in range(order["flows"]):
    box = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    if order["no_checksum"]:
        box.setsockopt(socket.IPPROTO_UDP, NO_CHECK6_TX, 1)
    box.setsockopt(socket.IPPROTO_IPV6, TCLASS, order["tclass"])
    if order["flows"] > 1:
        box.bind(("::", 20000 + number))
    boxes.append(box)
for index in range(order["count"]):
    data = f"{time.monotonic():.9f}".ljust(32, ".").encode().ljust(order["bytes"], b".")
    try:
        boxes[index % len(boxes)].sendto(data, (order["to"], order["port"]))
    except OSError as error:
        refused, reason = refused + 1, error.strerror
    if order["pause_s"] and index % order["burst"] == order["burst"] - 1:
        time.sleep(order["pause_s"])
print(json.dumps(dict(refused=refused, reason=reason)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """What became of some packets."""

    count: int
    refused: int
    """Packets that the sender's kernel would not take, and why."""
    reason: str
    marked: int
    rate_mbps: float
    """Of what arrived, IPv6 and UDP headers counted."""
    delay_s: float | None
    """Shortest time on the way."""
    to: list[str]
    """Destination addresses on arrival."""
    ports: dict[str, int]
    """Packets by source port."""
    links: dict[int, int]
    """Packets that directed links have carried meanwhile, without those that carried next to none."""


def send(
    lab: FabricLab,
    source: int,
    destination: int,
    to: ipaddress.IPv6Address | str,
    *,
    count: int = 200,
    size_bytes: int = 100,
    flows: int = 1,
    tclass: int = 0,
    burst: int = 20,
    pause_s: float = 0.002,
    no_checksum: bool = True,
    port: int = 7000,
) -> Arrived:
    """Sends packets from one NIC, waits until all that can arrive at another have, and tells what became of them."""
    before = lab.counters()
    receiver = lab.popen(
        destination,
        [sys.executable, "-c", RECEIVER, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        order = {
            "to": str(to),
            "port": port,
            "count": count,
            "bytes": size_bytes,
            "flows": flows,
            "tclass": tclass,
            "burst": burst,
            "pause_s": pause_s,
            "no_checksum": no_checksum,
        }
        sent = lab.run(source, [sys.executable, "-c", SENDER, json.dumps(order)])
        assert sent.returncode == 0, sent.stderr
        said, _ = receiver.communicate("", timeout=WAIT_S)
    finally:
        receiver.kill()
        receiver.wait()
    got: dict[str, Any] = json.loads(said)
    after = lab.counters()
    carried = {link: after[link][0] - before[link][0] for link in after}
    span_s = got["span_s"]
    return Arrived(
        count=got["count"],
        refused=json.loads(sent.stdout)["refused"],
        reason=json.loads(sent.stdout)["reason"],
        marked=got["marked"],
        rate_mbps=(got["bytes"] + 48 * got["count"]) * 8 / span_s / 1e6 if span_s else 0.0,
        delay_s=got["delay_s"],
        to=got["to"],
        ports=got["ports"],
        links={link: packets for link, packets in carried.items() if packets > QUIET},
    )


def link_number(lab: FabricLab, name: str) -> int:
    topology = lab.record.topology
    return next(link for link in range(topology.num_links) if topology.link_name(link) == name)


def has_carrier(lab: FabricLab, link: int) -> bool:
    """Whether the end of a cable that a directed link leaves sees a carrier."""
    cable = lab.wiring.cables[link >> 1]
    port = cable.sender(link)
    command = lab.shell.inside(lab.wiring.slugs[port.node], ["ip", "-j", "link", "show", port.interface])
    flags = json.loads(lab.shell.run(command))[0]["flags"]
    return "LOWER_UP" in flags


# ---- what is left behind ----------------------------------------------------------------------------------------


class Traces(NamedTuple):
    """What a lab may leave on a machine."""

    namespaces: frozenset[str]
    links: frozenset[str]
    processes: frozenset[str]
    files: frozenset[str]


def traces(what: str, folder: Path) -> Traces:
    """Everything on this machine that belongs to labs with this in their names, or to none of our making."""
    names = Path("/run/netns")
    listed = subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout
    processes = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if what in line and "pytest" not in line:
                    processes.add(f"{entry.name} {line}")
    return Traces(
        frozenset(path.name for path in (names.iterdir() if names.exists() else ()) if what in path.name),
        frozenset(item["ifname"] for item in json.loads(listed)),
        frozenset(processes),
        frozenset(str(path) for path in folder.rglob("*")) if folder.exists() else frozenset(),
    )


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Waits for something that is bound to happen."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {what}"
        time.sleep(0.01)


def farstep(*arguments: str, before: tuple[str, ...] = (), **options: Any) -> subprocess.Popen[str]:
    """Starts the command, with something in front of it."""
    return subprocess.Popen(
        [*before, sys.executable, "-m", "farstep", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
