"""`farstep perf`: goodput, latency and messages per second between two processes, in the manner of iperf3."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from farstep.cli.errors import INTERRUPTED, LOCAL, REMOTE, USAGE, CommandError
from farstep.cli.perf_options import (
    Bidir,
    Bind,
    Burst,
    Certificates,
    Connections,
    ConnectTimeout,
    Depth,
    IntervalLength,
    Json,
    Latency,
    Mtu,
    Name,
    NoChecksum,
    Omit,
    OneOff,
    PathMode,
    Planes,
    Port,
    Protect,
    Rate,
    Reverse,
    Server,
    Size,
    Time,
    Total,
)

if TYPE_CHECKING:
    from farstep.perf import EndSetup, PerfClient, PerfPlan, PerfResult
    from farstep.perf.server import ServedTest

__all__ = ["app"]

PORT = 5211
"""Of the control channel. iperf3's is 5201, and both may run."""

app = typer.Typer(
    help="Measure goodput, latency and messages per second between two machines.", no_args_is_help=True
)

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_GOODPUT_SIZE_BYTES = 1 << 20
_LATENCY_SIZE_BYTES = 64
_IN_FLIGHT_BYTES = 4 << 20
_DEPTH_MIN, _DEPTH_MAX = 4, 256


@app.command()
def server(
    port: Port = PORT,
    bind: Bind = None,
    one_off: OneOff = False,
    rate_mbps: Rate = None,
    is_json: Json = False,
    certs: Certificates = None,
    name: Name = None,
    protection: Protect = "off",
) -> None:
    """Wait for clients and measure with them, one at a time. Ctrl-C ends it.

    The first address of --bind, or all, takes the control channel. In a lab of farstep the ports of the NIC are used.
    """
    from farstep.cli import perf_text
    from farstep.perf import PerfError, PerfServer

    setup = _setup(bind, rate_mbps, certs, name, protection)
    try:
        serving = PerfServer(_host_of(bind), port, setup=setup)
    except PerfError as error:
        raise CommandError(str(error), status=LOCAL) from None
    host, number = serving.address
    if not is_json:
        shown = f"[{host}]" if ":" in host else host
        print(f"listening at {shown}:{number}", flush=True)

    def begin(client: str, plan: PerfPlan) -> None:
        if not is_json:
            print(f"{client}: {perf_text.plan_line(plan)}", flush=True)

    def end(test: ServedTest) -> None:
        if is_json:
            print(json.dumps(_served(test)), flush=True)
        else:
            print("\n".join(perf_text.served_lines(test)), flush=True)

    with _ends_on_sigterm():
        try:
            serving.serve(is_one_off=one_off, on_start=begin, on_end=end)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        finally:
            serving.close()


@app.command()
def client(
    host: Server,
    port: Port = PORT,
    time_s: Time = None,
    total: Total = None,
    size: Size = None,
    connections: Connections = 1,
    depth: Depth = None,
    latency: Latency = False,
    reverse: Reverse = False,
    bidir: Bidir = False,
    interval_s: IntervalLength = 1.0,
    omit_s: Omit = 0.0,
    bind: Bind = None,
    planes: Planes = 1,
    path_mode: PathMode = "auto",
    mtu: Mtu = None,
    burst: Burst = None,
    no_checksum: NoChecksum = False,
    rate_mbps: Rate = None,
    connect_timeout_s: ConnectTimeout = 10.0,
    is_json: Json = False,
    certs: Certificates = None,
    name: Name = None,
    protection: Protect = "off",
) -> None:
    """Measure against a server. Ctrl-C ends it early, with the summary of what was measured until then."""
    from farstep.perf import PerfClient

    if reverse and bidir:
        raise CommandError("--reverse and --bidir: one of the two", status=USAGE)
    if total is not None and time_s is not None:
        raise CommandError("--bytes and --time: one of the two says how long it takes", status=USAGE)
    size_bytes = _LATENCY_SIZE_BYTES if latency else _GOODPUT_SIZE_BYTES
    if size is not None:
        size_bytes = _bytes("--size", size)
    plan = _plan(
        measure="latency" if latency else "goodput",
        direction="reverse" if reverse else "both" if bidir else "forward",
        size_bytes=size_bytes,
        depth=_depth(size_bytes) if depth is None else depth,
        connections=connections,
        planes=planes,
        time_s=None if total is not None else 10.0 if time_s is None else time_s,
        total_bytes=None if total is None else _bytes("--bytes", total),
        omit_s=omit_s,
        path_mode=path_mode,
        mtu_bytes=mtu,
        burst_segments=burst,
        is_checked=not no_checksum,
    )
    setup = _setup(bind, rate_mbps, certs, name, protection)
    measuring = PerfClient(host, port, setup=setup, connect_timeout_s=connect_timeout_s)
    result = _run(measuring, plan, interval_s or None, is_json=is_json)
    if result.cause and not measuring.is_interrupted:
        raise CommandError(f"the measurement broke off: {result.cause}", status=REMOTE)
    if measuring.is_interrupted:
        raise typer.Exit(INTERRUPTED)


def _run(measuring: PerfClient, plan: PerfPlan, interval_s: float | None, *, is_json: bool) -> PerfResult:
    from farstep.cli import perf_text
    from farstep.perf import Interval, PerfError
    from farstep.perf.session import End

    intervals: list[Interval] = []

    def begin(end: End) -> None:
        if not is_json:
            print("\n".join(perf_text.start_lines(measuring.host, measuring.port, plan, end)), flush=True)

    def tell(interval: Interval) -> None:
        intervals.append(interval)
        if not is_json:
            print("\n".join(perf_text.interval_lines(plan, interval)), flush=True)

    try:
        with _interrupts(measuring):
            result = measuring.run(plan, interval_s=interval_s, on_interval=tell, on_start=begin)
    except PerfError as error:
        raise CommandError(str(error), status=REMOTE) from None
    if is_json:
        report = {
            "server": f"{measuring.host}:{measuring.port}",
            "plan": plan.table(),
            "intervals": [interval.table() for interval in intervals],
            "is_interrupted": measuring.is_interrupted,
            **result.table(),
        }
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(perf_text.summary_lines(plan, result)), flush=True)
    return result


@contextlib.contextmanager
def _interrupts(measuring: PerfClient) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the measurement; a second one ends the command."""

    def interrupt(*_: object) -> None:
        if measuring.is_interrupted:
            raise KeyboardInterrupt
        measuring.interrupt()

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _plan(**values: Any) -> PerfPlan:
    from farstep.perf import PerfError, PerfPlan

    try:
        return PerfPlan(**values)
    except PerfError as error:
        raise CommandError(f"command line: {error}", status=USAGE) from None


def _setup(
    bind: list[str] | None, rate_mbps: float | None, certs: Path | None, name: str | None, protection: str
) -> EndSetup:
    from farstep.engine import EngineError, InvalidFieldError
    from farstep.engine.profile import split_address
    from farstep.engine.security import Identity, SecurityProfile
    from farstep.perf import EndSetup

    if (certs is None) != (name is None):
        raise CommandError("--certs and --name: one needs the other", status=USAGE)
    try:
        identity = None if certs is None or name is None else Identity.in_directory(certs, name)
        security = SecurityProfile(identity=identity, within_site=protection)  # type: ignore[arg-type]
        for address in bind or ():
            split_address(address)
    except InvalidFieldError as error:
        if error.field == "within_site" and identity is None and protection in ("authenticate", "encrypt"):
            raise CommandError(f"--protection {protection}: needs --certs and --name", status=USAGE) from None
        raise CommandError(f"command line: {error}", status=USAGE) from None
    except EngineError as error:
        raise CommandError(str(error), status=LOCAL) from None
    return EndSetup(binds=tuple(bind or ()), rate_mbps=rate_mbps, security=security)


def _host_of(bind: list[str] | None) -> str:
    from farstep.engine.profile import split_address

    return split_address(bind[0])[0] if bind else ""


def _depth(size_bytes: int) -> int:
    """Writes in flight that keep a long line busy, and are soon through when the time is over."""
    return max(_DEPTH_MIN, min(_DEPTH_MAX, _IN_FLIGHT_BYTES // max(1, size_bytes)))


def _bytes(option: str, text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text.strip().upper())
    if found is None:
        raise CommandError(
            f"{option}: {text!r}: valid: a number of bytes, or with K, M, G or T behind it (of 1024)",
            status=USAGE,
        )
    return int(float(found[1]) * _UNITS[found[2]])


def _served(test: ServedTest) -> dict[str, Any]:
    return {
        "client": test.client,
        "plan": None if test.plan is None else test.plan.table(),
        "error": test.error,
        **({} if test.result is None else test.result.table()),
    }
