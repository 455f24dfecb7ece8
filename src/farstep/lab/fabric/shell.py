"""Running commands in the namespaces of a lab.

As root, a lab's namespaces have names that `ip netns` shows. Without root, they are files that only the lab's keeper
sees, in user and mount namespaces of its own, and every command begins by entering those.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from farstep.lab.fabric.errors import LabError

__all__ = ["COMMANDS", "NETNS", "Shell", "is_privileged", "may_make_user_namespaces", "missing_commands"]

COMMANDS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "sysctl": "procps",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
"""What a lab needs, and the package of Debian that has it."""

AT_ONCE_MAX = 16
"""Commands that run at once."""

COMMAND_S_MAX = 60.0
"""Longest time a command may take; a batch of thousands of routes takes a second."""

NETNS = Path("/run/netns")
"""Where `ip netns` keeps names."""

_OWN_SYS = 'mount -t sysfs sysfs /sys 2>/dev/null; cd "$1"; shift; exec "$@"'


_NET_ADMIN, _SYS_ADMIN = 12, 21
"""Capabilities that it takes to make network namespaces and to configure them."""


def is_privileged() -> bool:
    """Whether this process may make namespaces by itself; root in a container often may not."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return all(effective >> number & 1 for number in (_NET_ADMIN, _SYS_ADMIN))


def may_make_user_namespaces() -> bool:
    """Whether the kernel lets this process make the namespaces of a lab without root."""
    tried = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "--net", "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


def missing_commands() -> dict[str, str]:
    """Returns the commands that are not installed, and their packages."""
    return {command: package for command, package in COMMANDS.items() if shutil.which(command) is None}


class Shell:
    """Runs commands in namespaces.

    Args:
        prefix: what names of namespaces begin with.
        keeper_pid: process whose user and mount namespaces they are in; None: ours.
        folder: where the files that stand for them are, if there is a keeper.
    """

    def __init__(self, prefix: str, *, keeper_pid: int | None = None, folder: Path | None = None) -> None:
        self.prefix = prefix
        self._keeper_pid = keeper_pid
        self._folder = NETNS if folder is None else folder

    def name(self, slug: str) -> str:
        """Returns the name of a node's namespace."""
        return f"{self.prefix}{slug}"

    def path(self, slug: str) -> str:
        """Returns the file that stands for a node's namespace."""
        return str(self._folder / (self.name(slug) if self._keeper_pid is None else slug))

    def outside(self, command: Sequence[str]) -> list[str]:
        """Returns a command as it is run in the lab's user namespace, in no node."""
        if self._keeper_pid is None:
            return list(command)
        enter = ["nsenter", "-t", str(self._keeper_pid), "-U", "-m", "-n", "--preserve-credentials", "--"]
        return [*enter, *command]

    def inside(self, slug: str, command: Sequence[str]) -> list[str]:
        """Returns a command as it is run in a node's namespace."""
        return self.outside(["nsenter", f"--net={self.path(slug)}", "--", *command])

    def for_user(self, slug: str, command: Sequence[str], folder: str) -> list[str]:
        """Returns a user's command as it is run in a node, with `/sys` showing the node's interfaces."""
        return self.inside(slug, ["unshare", "--mount", "--", "sh", "-c", _OWN_SYS, "sh", folder, *command])

    def run(self, command: Sequence[str], *, text: str = "", check: bool = True) -> str:
        """Runs a command and returns what it prints.

        Args:
            command: as `outside` or `inside` return it.
            text: its input.
            check: whether its failure is ours.

        Raises:
            LabError: it failed, with what it said.
        """
        try:
            done = subprocess.run(
                command, input=text, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
            )
        except FileNotFoundError as error:
            raise LabError(f"{command[0]} is not installed") from error
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{' '.join(command)}: not through after {COMMAND_S_MAX:g} s") from error
        if check and done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
            raise LabError(f"{' '.join(command)}: {said}")
        return done.stdout

    def ip(self, lines: Mapping[str, Iterable[str]], *, force: bool = False) -> None:
        """Runs lines of `ip` in nodes; with `force`, goes on after one that fails."""
        command = ["ip", "-6", *(("-force",) if force else ()), "-batch", "-"]
        self._in_nodes(command, lines, check=not force)

    def tc(self, lines: Mapping[str, Iterable[str]]) -> None:
        """Runs lines of `tc` in nodes."""
        self._in_nodes(["tc", "-batch", "-"], lines)

    def nft(self, rules: Mapping[str, Iterable[str]]) -> None:
        """Loads rules into the packet filters of nodes, in each all or none."""
        self._in_nodes(["nft", "-f", "-"], rules)

    def sysctl(self, settings: Mapping[str, Mapping[str, str]]) -> None:
        """Sets kernel settings of nodes."""
        lines = {slug: [f"{key}={value}" for key, value in of.items()] for slug, of in settings.items()}
        self._in_nodes(["sysctl", "-q", "-p", "-"], lines)

    def _in_nodes(
        self, command: Sequence[str], lines: Mapping[str, Iterable[str]], *, check: bool = True
    ) -> None:
        """Runs a command in several nodes at once, for most of its time is waiting for the kernel.

        Raises:
            LabError: it failed somewhere.
        """
        texts = {slug: "".join(f"{line}\n" for line in of) for slug, of in lines.items()}
        wanted = [(self.inside(slug, command), text) for slug, text in texts.items() if text]
        with ThreadPoolExecutor(max(1, min(AT_ONCE_MAX, len(wanted)))) as pool:
            done = [pool.submit(self.run, line, text=text, check=check) for line, text in wanted]
        for future in done:
            future.result()
