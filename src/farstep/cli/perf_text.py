"""How measurements of the transport look on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farstep.perf import ConnectionFigures, Interval, PerfPlan, PerfResult
    from farstep.perf.server import ServedTest
    from farstep.perf.session import End

__all__ = [
    "interval_lines",
    "plan_line",
    "rate_text",
    "served_lines",
    "size_text",
    "start_lines",
    "summary_lines",
]

_HEAD = "[ ID]      Interval         Transfer        Goodput    Writes/s    Resent     Window        RTT"
_RULE = "- " * (len(_HEAD) // 2)
_SCALES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def size_text(size_bytes: float) -> str:
    """Writes a size in decimal units.

    >>> size_text(4_164_943_872), size_text(64)
    ('4.16 GB', '64 B')
    """
    return _scaled(size_bytes, "B")


def rate_text(bits_per_s: float) -> str:
    """Writes a rate in decimal units.

    >>> rate_text(33.17e9)
    '33.2 Gbit/s'
    """
    return _scaled(bits_per_s, "bit/s")


def plan_line(plan: PerfPlan) -> str:
    """Says in a line what is measured."""
    length = f"{plan.time_s:g} s" if plan.time_s is not None else size_text(plan.total_bytes or 0)
    if plan.measure == "latency":
        return f"latency of writes of {plan.size_bytes:,} bytes, {length}"
    direction = {"forward": "client sends", "reverse": "server sends", "both": "both send"}[plan.direction]
    many = "1 connection" if plan.connections == 1 else f"{plan.connections} connections"
    return f"{direction} writes of {plan.size_bytes:,} bytes, {plan.depth} in flight, {many}, {length}"


def start_lines(host: str, port: int, plan: PerfPlan, end: End) -> Iterator[str]:
    """Says what is about to be measured."""
    first = end.connections[0]
    planes = len(end.endpoint.ports)
    yield f"server {host}:{port}: {plan_line(plan)}"
    yield (
        f"path mode {end.endpoint.path_mode}, {planes} {'plane' if planes == 1 else 'planes'},"
        f" packets of {first.mtu_bytes:,} bytes, protection {first.protection}"
    )
    if plan.measure == "goodput":
        yield _HEAD


def interval_lines(plan: PerfPlan, interval: Interval) -> Iterator[str]:
    """Shows a span: each connection, and the sum of several."""
    if plan.measure == "latency":
        span = f"{interval.start_s:6.2f}-{interval.end_s:.2f} s"
        yield f"[lat]  {span}  {interval.total.sent_writes:10,} writes there and back"
        return
    mark = " (omitted)" if interval.is_omitted else ""
    for name, figures in _named(interval.connections, interval.total):
        for is_sent, arrow in _directions(plan):
            yield _line(name, interval.start_s, interval.end_s, figures, arrow + mark, is_sent=is_sent)


def summary_lines(plan: PerfPlan, result: PerfResult) -> Iterator[str]:
    """Shows what a measurement came to."""
    yield _RULE
    if result.latency is not None:
        yield from _latency_lines(result)
    elif plan.measure == "goodput":
        yield _HEAD
        for name, figures in _named(result.connections, result.total):
            for is_sent, _ in _directions(plan):
                what = "sent and confirmed" if is_sent else "received"
                yield _line(name, 0.0, figures.seconds, figures, what, is_sent=is_sent)
        yield from _peer_lines(plan, result.peer)
    packets = sum(plane["packets"] for plane in result.planes)
    if len(result.planes) > 1 and packets:
        for plane in result.planes:
            share = 100 * plane["packets"] / packets
            good = f"{plane['good_paths']} of {plane['paths']} paths good"
            yield f"plane {plane['plane']}: {share:.1f} % of packets, {good}"
    there = result.peer.get("processor_share")
    yield f"transport's thread: {100 * result.processor_share:.0f} % of a core here" + (
        f", {100 * there:.0f} % there" if isinstance(there, int | float) else ""
    )


def served_lines(test: ServedTest) -> Iterator[str]:
    """Shows a server's view of a measurement."""
    if test.result is None:
        yield f"{test.client}: error: {test.error}"
        return
    total = test.result.total
    parts = []
    if total.received_bytes:
        parts.append(f"received {size_text(total.received_bytes)}, {rate_text(total.received_bits_per_s)}")
    if total.sent_bytes:
        parts.append(f"sent {size_text(total.sent_bytes)}, {rate_text(total.sent_bits_per_s)}")
    yield f"{test.client}: {'; '.join(parts) or 'nothing'} in {total.seconds:.2f} s" + (
        f" (broken off: {test.error})" if test.error else ""
    )


def _named(
    each: tuple[ConnectionFigures, ...], total: ConnectionFigures
) -> Iterator[tuple[str, ConnectionFigures]]:
    for index, figures in enumerate(each):
        yield f"{index:3}", figures
    if len(each) > 1:
        yield "SUM", total


def _directions(plan: PerfPlan) -> list[tuple[bool, str]]:
    both = plan.direction == "both"
    return [
        (is_sent, ("sent" if is_sent else "received") if both else "")
        for is_sent in (True, False)
        if (plan.client_sends if is_sent else plan.server_sends)
    ]


def _line(
    name: str, start_s: float, end_s: float, figures: ConnectionFigures, note: str, *, is_sent: bool
) -> str:
    moved = figures.sent_bytes if is_sent else figures.received_bytes
    writes = figures.sent_writes if is_sent else figures.received_writes
    rate = figures.sent_bits_per_s if is_sent else figures.received_bits_per_s
    per_s = writes / figures.seconds if figures.seconds > 0 else 0.0
    span = f"{start_s:6.2f}-{end_s:.2f} s".ljust(17)
    line = f"[{name}] {span}  {size_text(moved):>11}  {rate_text(rate):>13}  {per_s:>10,.0f}"
    if is_sent:
        line += (
            f"  {figures.retransmitted:>8,}  {size_text(figures.cwnd_bytes):>9}  {figures.rtt_us:>6,.0f} us"
        )
    return f"{line}  {note}".rstrip()


def _latency_lines(result: PerfResult) -> Iterator[str]:
    latency = result.latency
    assert latency is not None
    yield "time of a write, half of one there and one back:"
    yield "      count    min us   mean us median us    p99 us  p99.9 us    max us"
    values = (
        latency.min_us,
        latency.mean_us,
        latency.median_us,
        latency.p99_us,
        latency.p999_us,
        latency.max_us,
    )
    yield f"{latency.count:11,}" + "".join(f"{value:10,.1f}" for value in values)


def _peer_lines(plan: PerfPlan, peer: dict[str, Any]) -> Iterator[str]:
    total = peer.get("total")
    if not isinstance(total, dict):
        return
    for is_sent, _ in _directions(plan):
        # What we sent, it received.
        key, what = ("received", "received there") if is_sent else ("sent", "sent there and confirmed")
        moved, rate = total.get(f"{key}_bytes", 0), total.get(f"{key}_bits_per_s", 0.0)
        more = f", {total.get('retransmitted', 0):,} packets sent again" if not is_sent else ""
        yield f"{what}: {size_text(moved)}, {rate_text(rate)}{more}"


def _scaled(value: float, unit: str) -> str:
    for letter, scale in _SCALES:
        if abs(value) >= scale:
            return (
                f"{value / scale:.3g} {letter}{unit}"
                if value / scale < 1000
                else f"{value / scale:.0f} {letter}{unit}"
            )
    return f"{value:.0f} {unit}"
