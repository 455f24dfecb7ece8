"""What this machine can do for a lab: found out by trying, in a namespace that is thrown away."""

from __future__ import annotations

import shutil
import subprocess

from farstep.lab.fabric.errors import LabError
from farstep.lab.fabric.impairments import Features
from farstep.lab.fabric.shell import COMMAND_S_MAX, Shell, missing_commands
from farstep.lab.fabric.wiring import FLAVOR

__all__ = ["check_machine", "try_features"]

_LINK = "link add probe0 type veth peer name probe1\nlink set probe0 up\n"
_SHIFTS = "route add fcbb:bbbb:1::/48 encap seg6local action End {flavor} dev probe0\n"
_SENDS = "route add fcbb:bbbb:1:2::/64 encap seg6local action End.X nh6 fd00::1 {flavor} dev probe0\n"
_FILTER = (
    "table netdev probe {{ limit l {{ rate over 9/second burst 5 packets\n}}\n"
    " chain c {{ type filter hook {hook} device lo priority 0; {rule}; }} ; }}\n"
)


def check_machine() -> None:
    """Refuses a machine that lacks commands.

    Raises:
        LabError: naming them, and the packages that have them.
    """
    missing = missing_commands()
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        raise LabError(f"not installed: {', '.join(missing)} (packages of Debian: {packages})")


def try_features(shell: Shell, *, needs_adjacency: bool) -> Features:
    """Finds out what the kernel and its tools can do.

    Args:
        shell: runs commands for the lab.
        needs_adjacency: whether the fabric has parallel cables, which uSIDs of cables tell apart.

    Raises:
        LabError: the kernel forwards no uSIDs.
    """
    routes = _SHIFTS + (_SENDS if needs_adjacency else "")
    said = _try(shell, ["ip", "-6", "-batch", "-"], _LINK + routes.format(flavor=FLAVOR))
    if said is not None:
        needed = "6.6" if needs_adjacency else "6.1"
        raise LabError(
            f"this kernel, or its ip command, forwards no SRv6 micro-SIDs ({said}); needed: Linux {needed} with"
            " CONFIG_IPV6_SEG6_LWTUNNEL, and iproute2 6.1"
        )
    return Features(
        filters=_filters(shell, "ingress", "numgen random mod 10 < 1 counter drop"),
        marks=_filters(shell, "egress", 'limit name "l" ip6 ecn set ce'),
        netem=_try(shell, ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]) is None,
    )


def _filters(shell: Shell, hook: str, rule: str) -> bool:
    if shutil.which("nft") is None:
        return False
    return _try(shell, ["nft", "-f", "-"], _FILTER.format(hook=hook, rule=rule)) is None


def _try(shell: Shell, command: list[str], text: str = "") -> str | None:
    """Runs a command in a namespace of its own; returns the last thing it said, or None if it went well."""
    done = subprocess.run(
        shell.outside(["unshare", "--net", "--", *command]),
        input=text,
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return said[0] if said else f"exit status {done.returncode}"
