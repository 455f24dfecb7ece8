"""The emulator by itself, for testing any program that speaks UDP: one TOML file, one command.

The file is a network description with two further lists: `[[expose]]`, the ports to reach over the emulated
paths, and `[[faults]]`, the fault script, whose clock starts with the emulator.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

from pydantic import Field, ValidationError, field_validator

from farstep.fabric import ConfigError, EmulatedNetwork, Fault, FaultTimeline, describe_validation_error
from farstep.fabric.errors import read_toml
from farstep.fabric.faults import FAULTS_MAX
from farstep.fabric.script import check_script
from farstep.fabric.tables import Table
from farstep.lab.process import EmulatorProcess
from farstep.lab.sockets import Address

EXPOSED_MAX = 256
"""Ports one file may expose."""


class ExposedPort(Table):
    """A port of a program under test, and where its peers at other sites find it."""

    site: str
    """Site the port is at."""
    plane: int = Field(default=0, ge=0, le=255)
    """Plane it belongs to."""
    address: str
    """HOST:PORT it is bound to."""
    listen: dict[str, str] = Field(default_factory=dict)
    """HOST:PORT at which peers of a site reach it, per site; a site left out gets a free port."""
    can_answer: bool = True
    """Carries answers back to the source address of what arrived, as most programs send them."""

    @field_validator("address")
    @classmethod
    def _address_is_complete(cls, value: str) -> str:
        split_address(value)
        return value

    @field_validator("listen")
    @classmethod
    def _listen_addresses_are_complete(cls, value: dict[str, str]) -> dict[str, str]:
        for address in value.values():
            split_address(address)
        return value


class EmulationFile(EmulatedNetwork):
    """A network, the ports to expose, and what goes wrong."""

    expose: tuple[ExposedPort, ...] = Field(default=(), max_length=EXPOSED_MAX)
    """Ports of the programs under test."""
    faults: tuple[Fault, ...] = Field(default=(), max_length=FAULTS_MAX)
    """Fault script."""
    listen_host: str = "127.0.0.1"
    """Address of this machine at which peers reach the emulator, where `listen` does not say."""

    @field_validator("faults")
    @classmethod
    def _faults_are_timed(cls, value: tuple[Fault, ...]) -> tuple[Fault, ...]:
        check_script(value)
        return value


def split_address(text: str) -> Address:
    """Splits HOST:PORT; an IPv6 host stands in brackets.

    Raises:
        ValueError: the text is no such address.

    Example:
        >>> split_address("[::1]:9000")
        ('::1', 9000)
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(
            'write "HOST:PORT" with a port in 0..65535, such as "127.0.0.1:9000" or "[::1]:9000"'
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def load_emulation(path: str | Path) -> EmulationFile:
    """Reads a file for `run_emulator`.

    Raises:
        ConfigError: with one line per mistake.
    """
    try:
        file = EmulationFile.model_validate(read_toml(path))
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error, str(path))) from error
    FaultTimeline(file.faults, file, source=str(path))  # names unknown targets before anything runs
    _check_exposed(file, str(path))
    return file


def _check_exposed(file: EmulationFile, source: str) -> None:
    """Raises ConfigError for a port at a site, or for peers of a site, that the network does not have."""
    for index, port in enumerate(file.expose):
        for key, site in [("site", port.site), *((f"listen.{name}", name) for name in port.listen)]:
            if site not in file.sites:
                known = ", ".join(file.sites)
                raise ConfigError(
                    f'{source}: expose[{index}].{key} = "{site}": no such site; known sites: {known}'
                )
        planes = sorted({channel.plane for channel in file.channels if channel.to_site == port.site})
        if port.plane not in planes:
            raise ConfigError(
                f"{source}: expose[{index}].plane = {port.plane}: no path of this plane leads to site "
                f"{port.site}; planes there: {', '.join(map(str, planes)) or 'none'}"
            )


def run_emulator(path: str | Path, *, for_s: float | None = None, out: TextIO | None = None) -> None:
    """Emulates what a file describes, until interrupted.

    Prints where to send to, every fault as it happens, and a summary at the end.

    Args:
        path: TOML file.
        for_s: ends by itself after this many seconds; None: at Ctrl-C or SIGTERM.
        out: where to print; None: standard output.

    Raises:
        ConfigError: the file is wrong, or an address in it cannot be used.
    """
    file = load_emulation(path)
    out = sys.stdout if out is None else out
    directory = tempfile.mkdtemp(prefix="farstep-")
    try:
        control = str(Path(directory, "control"))
        process = EmulatorProcess(file, control, listen_host=file.listen_host)
        _run(process, file, for_s, out)
    except OSError as error:
        raise ConfigError(f"{path}: the emulator cannot start: {error.strerror or error}") from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(process: EmulatorProcess, file: EmulationFile, for_s: float | None, out: TextIO) -> None:
    started_ns = time.monotonic_ns()

    def say(line: str) -> None:
        out.write(line + "\n")
        out.flush()

    def tell(event: dict[str, object]) -> None:
        at_s = (time.monotonic_ns() - started_ns) / 1e9
        say(f"{at_s:8.3f} s  {event['action']:8}  {event['fault']} {event['target']}")

    process.on_event = tell
    try:
        for port in file.expose:
            address = split_address(port.address)
            listen = {site: split_address(text) for site, text in port.listen.items()}
            reachable = process.forwarder.expose(
                port.site, port.plane, address, listen=listen, can_answer=port.can_answer
            )
            for site, (host, number) in reachable.items():
                if site != port.site:
                    say(
                        f"{site} reaches {port.address} at {port.site} (plane {port.plane}) at {host}:{number}"
                    )
        say(f"control address: {process.control.path}")
        for index, fault in enumerate(file.faults):
            if fault.at_step is not None:
                say(
                    f"faults[{index}] ({fault.kind}) waits for step {fault.at_step}, told at the control address"
                )
        process.script.load(file.faults, "faults")
    except BaseException:
        process.close()
        raise
    stats = process.run(for_s=for_s)
    say("")
    say(f"{'path':20} {'direction':14} {'packets in':>12} {'out':>12} {'dropped':>9} {'marked':>9}")
    for entry in stats["channels"]:
        direction = f"{entry['from_site']} -> {entry['to_site']}"
        dropped = sum(entry["drops"].values())
        say(
            f"{entry['path']:20} {direction:14} {entry['offered_packets']:12} {entry['delivered_packets']:12}"
            f" {dropped:9} {entry['ecn_marked']:9}"
        )
