"""`farstep doctor`: what this machine offers to the transport and to training."""

import os
import platform
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from farstep import _native

__all__ = ["doctor"]

UDP_SEGMENT = 103
UDP_GRO = 104
"""Socket options of <linux/udp.h>; Python's socket module does not name them."""

SOCKET_BUFFER_WANTED_BYTES = 4 << 20
"""Two rounds of 50 ms at 400 Mbit/s; smaller buffers drop bursts before the transport sees them."""

MEMORY_WANTED_BYTES = 2 << 30
"""Four ranks with torch loaded need about 1.5 GiB."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report; a hint means that something could be better."""

    name: str
    value: str
    hint: str = ""


def doctor() -> None:
    """Print what this machine offers, with hints where something is in the way."""
    findings = list(_findings())
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{'!' if finding.hint else ' '} {finding.name:<{width}}  {finding.value}")
    hints = [finding for finding in findings if finding.hint]
    for finding in hints:
        print(f"\nhint: {finding.name}: {finding.hint}")


def _findings() -> Iterator[Finding]:
    yield Finding("farstep", metadata.version("farstep"))
    yield Finding("python", f"{platform.python_version()} ({platform.python_implementation()})")
    yield Finding("kernel", f"{platform.system()} {platform.release()} {platform.machine()}", _kernel_hint())
    yield _offload("UDP GSO (sending)", UDP_SEGMENT, 1200)
    yield _offload("UDP GRO (receiving)", UDP_GRO, 1)
    yield _chosen_paths()
    yield _socket_buffer("receive buffer limit", "rmem_max")
    yield _socket_buffer("send buffer limit", "wmem_max")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding(
        "cores usable", str(cores), "" if cores > 1 else "the demo runs four ranks; give it two cores or more"
    )
    yield _memory()
    missing = _native.why_no_libcrypto()
    protection = "no" if missing else "yes, by the system's libcrypto"
    yield Finding("encryption", protection, missing and f"{missing}; connections can only have mode off")
    yield _labs()
    yield _package("torch", "needed by farstep train")
    yield _package("plotly", "needed for HTML reports")


def _kernel_hint() -> str:
    return "" if platform.system() == "Linux" else "the transport uses Linux socket calls"


def _offload(name: str, option: int, value: int) -> Finding:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_UDP, option, value)
        except OSError as error:
            return Finding(
                name,
                f"no ({error.strerror})",
                "Linux 5.0 or newer has it; without it each packet costs a call",
            )
    return Finding(name, "yes")


def _chosen_paths() -> Finding:
    from farstep.engine.path_mode import why_never_srv6

    reason = why_never_srv6()
    return Finding("path mode srv6", f"no: {reason}" if reason else "yes, in a network of micro-SIDs")


def _labs() -> Finding:
    from farstep.lab.fabric.shell import is_privileged, may_make_user_namespaces, missing_commands

    missing = missing_commands()
    if missing:
        return Finding("labs", f"no: not installed: {', '.join(missing)}")
    if not is_privileged() and not may_make_user_namespaces():
        return Finding("labs", "no: neither root nor user namespaces")
    return Finding("labs", "yes" if shutil.which("nft") else "yes, without loss and silent outages (no nft)")


def _socket_buffer(name: str, key: str) -> Finding:
    path = Path("/proc/sys/net/core") / key
    try:
        size = int(path.read_text())
    except (OSError, ValueError):
        return Finding(name, "unknown")
    wanted = SOCKET_BUFFER_WANTED_BYTES
    hint = f"sudo sysctl -w net.core.{key}={wanted}" if size < wanted else ""
    return Finding(name, f"{size:,} bytes", hint)


def _memory() -> Finding:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):
        return Finding("memory available", "unknown")
    hint = "" if kib * 1024 >= MEMORY_WANTED_BYTES else "the demo takes about 1.5 GiB for its four ranks"
    return Finding("memory available", f"{kib / 2**20:.1f} GiB", hint)


def _package(name: str, use: str) -> Finding:
    try:
        return Finding(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "not installed", f'{use}: pip install "farstep[train]"')
