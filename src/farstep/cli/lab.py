"""`farstep lab`: networks to try things on, on this machine."""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farstep.cli.errors import INTERRUPTED, LOCAL, USAGE, CommandError

if TYPE_CHECKING:
    from farstep.fabric.topology import LinkChange, Topology
    from farstep.lab.fabric import FabricLab, FaultNotice

__all__ = ["app"]

app = typer.Typer(
    help="Networks to try things on, on this machine.", invoke_without_command=True, rich_markup_mode=None
)

Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Which lab, if there are several; else that of FARSTEP_LAB.", show_default=False
    ),
]


@app.callback()
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("emulate")
def emulate(
    network: Annotated[Path, typer.Argument(metavar="NETWORK.TOML", help="Sites, paths, ports and faults.")],
    for_s: Annotated[
        float | None, typer.Option(min=0.0, max=1e9, help="End after so many seconds, not at Ctrl-C.")
    ] = None,
) -> None:
    """Carry UDP between sites over emulated paths, for any program.

    The file lists sites and paths as for a run, under [[expose]] the ports to make reachable, and
    under [[faults]] what goes wrong. Ctrl-C ends it with a summary.
    """
    from farstep.fabric.errors import ConfigError
    from farstep.lab.standalone import run_emulator

    try:
        run_emulator(network, for_s=for_s)
    except ConfigError as error:
        raise CommandError(str(error), status=USAGE) from error


@app.command("up")
def up(
    fabric: Annotated[
        str,
        typer.Argument(metavar="FABRIC.TOML", help="A scenario's [fabric], a network's file, or a preset."),
    ],
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the lab; else that of the file.", show_default=False),
    ] = None,
    scale: Annotated[
        float, typer.Option(help="Part of the file's rates; 0.001: 100 Gb/s is 100 Mb/s.")
    ] = 1.0,
    mtu: Annotated[int, typer.Option(help="Largest packet on a link, in bytes.")] = 9000,
    queue_ms: Annotated[float, typer.Option(help="What waits before a link at most, at its rate.")] = 20.0,
    mark_ms: Annotated[float, typer.Option(help="ECN marks from so much waiting on; 0: never.")] = 5.0,
    delay: Annotated[
        str, typer.Option(help="Who delays packets on long links: auto, netem, tunnel or none.")
    ] = "auto",
    rootless: Annotated[
        bool, typer.Option("--rootless", help="Do without root's rights, even if we have them.")
    ] = False,
    hold: Annotated[bool, typer.Option("--hold", help="Stay, and take the lab down at Ctrl-C.")] = False,
) -> None:
    """Build a fabric of network namespaces, forwarded by the kernel's SRv6 micro-SIDs.

    NICs and switches become namespaces and cables pairs of interfaces. The file is the one that
    farstep simulate reads. farstep lab down removes everything.
    """
    from farstep.lab.fabric import FabricLab, LabOptions
    from farstep.lab.fabric.description import load_fabric

    with _translated():
        topology = load_fabric(fabric)
        options = LabOptions(rate_scale=scale, mtu_bytes=mtu, queue_ms=queue_ms, mark_ms=mark_ms)
        started_s = time.monotonic()
        lab = FabricLab.up(
            topology,
            name=_default_name(fabric) if name is None else name,
            options=options,
            delay=delay,  # type: ignore[arg-type]  # checked there
            is_rootless=True if rootless else None,
        )
        print(f"{_summary(lab)}; up in {time.monotonic() - started_s:.1f} s")
        for note in _notes(lab):
            print(f"note: {note}")
        if not hold:
            return
        try:
            print("Ctrl-C takes it down", flush=True)
            while True:
                signal.pause()
        except KeyboardInterrupt:
            lab.down()
            print(f"lab {lab.name} is down")


def _default_name(fabric: str) -> str:
    """A name for a lab of this file: its own, as far as names of labs go."""
    stem = "".join(char if char.isascii() and char.isalnum() else "_" for char in Path(fabric).stem.lower())
    return stem[:24] or "lab"


@app.command("status")
def status(
    name: Name = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all there is to know as JSON.")] = False,
) -> None:
    """Show which labs there are, and what is the matter with their links."""
    from farstep.lab.fabric import find_lab, lab_names

    with _translated():
        labs = [find_lab(known) for known in ([name] if name is not None else lab_names())]
        if as_json:
            print(json.dumps([_table(lab) for lab in labs], indent=1))
            return
        if not labs:
            print("no lab is up")
        for lab in labs:
            reason = lab.why_not_up()
            if reason is not None:
                print(f"lab {lab.name} {reason}; farstep lab down --name {lab.name} clears it away")
                continue
            print(f"{_summary(lab)}; {_running(len(lab.processes()))} in it")
            for cable, what in _broken(lab).items():
                print(f"  {cable}: {what}")


def _running(count: int) -> str:
    return "nothing runs" if not count else "1 process runs" if count == 1 else f"{count} processes run"


def _table(lab: "FabricLab") -> dict[str, Any]:
    from dataclasses import asdict

    from farstep.lab.fabric import link_states

    reason = lab.why_not_up()
    topology = lab.record.topology
    table: dict[str, Any] = {
        "name": lab.name,
        "problem": reason,
        "network": topology.name,
        "nics": topology.num_nics,
        "switches": topology.num_switches,
        "cables": topology.num_cables,
        "planes": topology.num_planes,
        "rootless": lab.record.is_rootless,
        "options": asdict(lab.record.options),
        "folder": str(lab.record.folder),
    }
    if reason is None:
        states = link_states(lab)
        counts = lab.counters()
        table["processes"] = lab.processes()
        table["namespaces"] = [lab.shell.path(slug) for slug in lab.wiring.slugs]
        table["links"] = {
            topology.link_name(link): {
                "interface": lab.wiring.interfaces[link],
                "packets": counts[link][0],
                "bytes": counts[link][1],
                "fault": asdict(states[link]) if link in states else None,
            }
            for link in range(topology.num_links)
        }
    return table


@app.command("down")
def down(
    name: Name = None,
    every: Annotated[bool, typer.Option("--all", help="Every lab of this user.")] = False,
) -> None:
    """Remove a lab, with all that runs in it; also one that was left half built."""
    from farstep.lab.fabric import find_lab, lab_names, remove_unrecorded

    with _translated():
        if name is not None and name not in lab_names() and remove_unrecorded(name):
            print(f"lab {name}, of which nothing was recorded, is down")
            return
        labs = [find_lab(known) for known in lab_names()] if every else [find_lab(name)]
        for lab in labs:
            lab.down()
            print(f"lab {lab.name} is down")


@app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="Program and arguments.")],
    nic: Annotated[str, typer.Option(metavar="N,N|all", help="NIC to run it at, or several.")] = "0",
    name: Name = None,
) -> None:
    """Run a command at a NIC of the lab; it sees that NIC's interfaces and no others.

    Ends with the command's own exit status. At several NICs the command runs at all of them at
    once, and what each prints begins with its number. FARSTEP_LAB_NIC is the number of the NIC, and
    FARSTEP_LAB_ADDRESSES a JSON file with the addresses of all.
    """
    from farstep.cli.lab_commands import run_at
    from farstep.lab.fabric import find_lab

    with _translated():
        lab = find_lab(name)
        exit_status = run_at(lab, _nics(nic, lab.record.topology), command)
    raise typer.Exit(exit_status)


def _nics(text: str, topology: "Topology") -> list[int]:
    from farstep.fabric.errors import ConfigError

    if text == "all":
        return list(range(topology.num_nics))
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isdecimal() and part.isascii() and len(part) < 10 and int(part) < topology.num_nics):
            raise ConfigError(f"--nic {part!r}: no such NIC; valid: 0 to {topology.num_nics - 1}, or all")
    return [int(part) for part in dict.fromkeys(parts)]


@app.command("fault")
def fault(
    script: Annotated[
        Path | None,
        typer.Argument(metavar="[SCRIPT.TOML]", help="A file with [[faults]], such as a scenario."),
    ] = None,
    name: Name = None,
    stretch: Annotated[
        float, typer.Option(min=1e-6, max=1e9, help="Times of the script are so much longer.")
    ] = 1.0,
    for_s: Annotated[
        float | None, typer.Option(min=0.0, max=1e9, help="End after so many seconds, whatever is to come.")
    ] = None,
    reroute_ms: Annotated[
        float, typer.Option(min=0.0, max=1e9, help="Until routing has followed a failure that is signalled.")
    ] = 500.0,
    clear: Annotated[bool, typer.Option("--clear", help="Mend all links, and do nothing else.")] = False,
) -> None:
    """Carry out a fault script on the links of a lab.

    What is the matter with links when the script ends stays so; --clear mends it, and so does
    Ctrl-C while the script runs. Traffic that says no path is routed around what is signalled,
    --reroute-ms late; paths of micro-SIDs are never rerouted.
    """
    from farstep.fabric.errors import ConfigError
    from farstep.lab.fabric import LabFaults, find_lab, link_states

    with _translated():
        if (script is None) == (not clear):
            raise ConfigError("SCRIPT.TOML or --clear: give one of them")
        lab = find_lab(name)
        changes = [] if script is None else _script(script, lab.record.topology, stretch, for_s)
        with LabFaults(lab, reroute_s=reroute_ms / 1000, tell=_tell) as faults:
            faults.run(changes, source=str(script))
        broken = {} if clear else link_states(lab)
        if broken:
            print("what is the matter with links now stays so; farstep lab fault --clear mends them")


def _script(path: Path, topology: "Topology", stretch: float, for_s: float | None) -> "list[LinkChange]":
    """What a script does to links, in the order of time; the same reader as the simulator's."""
    from dataclasses import replace

    from farstep.cli.lab_commands import load_faults

    until_ns = None if for_s is None else round(for_s * 1e9 / stretch)
    return [
        replace(change, time_ns=round(change.time_ns * stretch))
        for change in load_faults(path, topology, until_ns)
    ]


def _tell(notice: "FaultNotice") -> None:
    what = {
        "down": "down, signalled" if notice.is_signalled else "down, silent",
        "loss": f"loss {100 * notice.value:.4g} %",
        "rate": f"rate {100 * notice.value:.4g} %",
        "delay": f"delay {notice.value / 1e6:+.4g} ms",
        "reroute": "routing has followed",
    }.get(notice.kind, notice.kind)
    more = f" and {len(notice.links) - 4} more" if len(notice.links) > 4 else ""
    print(f"{notice.at_s:9.3f} s  {what:16}  {' '.join(notice.links[:4])}{more}".rstrip(), flush=True)


def _broken(lab: "FabricLab") -> dict[str, str]:
    """What is the matter with links, by name; both directions of a cable together where they are alike."""
    from farstep.lab.fabric import link_states

    states = link_states(lab)
    found = {}
    for link, state in sorted(states.items()):
        label = lab.record.topology.link_name(link)
        if states.get(link ^ 1) == state:
            if link & 1:
                continue
            label = label.replace("->", "-", 1)
        found[label] = state.text
    return found


def _summary(lab: "FabricLab") -> str:
    topology = lab.record.topology
    rates = sorted({round(rate, 6) for cable in lab.wiring.cables for rate in cable.rates_mbps})
    span = f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"
    planes = f"{topology.num_planes} plane{'s' * (topology.num_planes > 1)}"
    return (
        f"lab {lab.name}: {topology.num_nics} NICs, {topology.num_switches} switches and {topology.num_cables}"
        f" cables of {span} Mb/s in {planes}"
    )


CARRIED_MBPS_MAX = 4000.0
"""What a pair of processors carries over a fabric at a guess; beyond, a lab shows the machine and not the network."""


def _notes(lab: "FabricLab") -> list[str]:
    import numpy as np

    from farstep.lab.fabric.options import DELAY_MS_MIN

    topology, features = lab.record.topology, lab.features
    notes = []
    ports = topology.ports
    total_mbps = float(np.sum(topology.link_rate_gbps[ports.link])) * 1000 * lab.record.options.rate_scale
    if total_mbps > CARRIED_MBPS_MAX:
        notes.append(
            f"the NICs can send {total_mbps:,.0f} Mb/s together, more than this machine may carry; --scale"
            " makes it less"
        )
    if not features.filters:
        notes.append("no silent outages and no loss here: they need the command nft (package nftables)")
    if any(0 < max(cable.delays_ms) < DELAY_MS_MIN for cable in lab.wiring.cables):
        notes.append(f"delays below {DELAY_MS_MIN:g} ms are left out; the kernel itself takes some 0.02 ms")
    carried = sum(cable.is_carried for cable in lab.wiring.cables)
    if carried:
        notes.append(f"packets on {carried} cables are delayed by process {lab.record.keeper_pid}")
    return notes


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turns what can go wrong into an end of the command, and signals that end programs into Ctrl-C."""
    from farstep.fabric.errors import ConfigError
    from farstep.lab.fabric import LabError

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except ConfigError as error:
        raise CommandError(str(error), status=USAGE) from error
    except LabError as error:
        raise CommandError(str(error), status=LOCAL) from error
    except KeyboardInterrupt as error:
        raise CommandError("stopped", status=INTERRUPTED) from error
    finally:
        sys.stdout.flush()
        for number, handler in before.items():
            signal.signal(number, handler)
