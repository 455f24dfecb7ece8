"""What fluid rates leave out on sprayed fabrics: packets that meet by chance, and the queues they leave.

Rates alone say that links under a load of exactly their capacity need no queue. Packets sprayed at random make
one: what arrives at a link in a packet's time has a mean of the load and some variance, so that the queue is a
random walk that is reflected at zero (the heavy-traffic limit of queueing theory; Kingman 1961, Harrison 1985). A
flow is done when its last packets are through the longest of the queues on its paths.

Per hop that spreads over `width` links, in units of a packet's time on that link:

* arrivals to one link from `users` flows or more: variance `v = load**2 * (1 - 1 / min(users, width))`, which
  counts the pairs of packets that may meet; a flow does not collide with itself.
* queue after `t` packet times: that of a Brownian motion of variance `v` and drift `-(1 - load)`, reflected at zero,
  whose mean and spread are closed forms; in the limit of little load the mean is the queue of a slotted server,
  `v / (2 * (1 - load))`.
* the queue finds an upper bound, too, at `queue_packets`, where packets are trimmed or senders slow down. Reflected at
  both ends, it turns away `v / (2 * queue_packets)` packets per packet time in the long run (less if there is slack),
  after a time in which it fills up.

The means of the hops add up, and so do their variances. The slowest of `paths` paths lies as many standard deviations
above the mean as the largest of so many normal deviates. Two numbers describe a transport: `FlowSettings.collisions`
scales the queues (1: packets take paths at random; 0: they are dealt out perfectly), and `FlowSettings.backoff` is the
number of packets it does not send for each that is turned away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.ragged import scramble, sums

__all__ = ["Hops", "Noise", "queueing_ns", "reflected_queue", "turned_away", "turned_away_ns"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PATHS_MAX = 64
"""Paths among which the slowest counts: the last packets of a flow are about a window, however many paths there are."""

LOAD_MAX = 1.0
"""Rounding aside no link carries more."""


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """Hops of flows that are about to end, in flat columns of one length.

    Attributes:
        flow: int64, index of the flow, ascending.
        share: float64, part of the flow that takes this hop.
        load: float64, load of the hop's links, 0..1.
        users: float64, flows that load them.
        width: int64, links the hop spreads over.
        packet_ns: float64, time of a packet on one of them.
        deviation: float64, of the queues of these links from their mean, in standard deviations; None: the mean.
    """

    flow: IntArray
    share: FloatArray
    load: FloatArray
    users: FloatArray
    width: IntArray
    packet_ns: FloatArray
    deviation: FloatArray | None

    def walk(self, duration_ns: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns time, variance and slack of the random walk at each hop, for flows that lasted so long."""
        load = np.clip(self.load, 0.0, LOAD_MAX)
        meeting = np.maximum(np.minimum(self.users, self.width), 1.0)
        variance = load**2 * (1.0 - 1.0 / meeting)
        return duration_ns[self.flow] / self.packet_ns, variance, 1.0 - load


@dataclass(frozen=True, slots=True)
class Noise:
    """Deviations from the mean that a seed stands for."""

    seed: int

    def at(self, names: NDArray[Any], salt: int) -> FloatArray:
        """Returns a standard normal deviate for each name, the same for the same (Box and Muller 1958)."""
        word = scramble(names, 1000 * salt + self.seed)
        first = (word >> np.uint64(40)).astype(np.float64) / 2.0**24 + 2.0**-25
        second = (word & np.uint64(0xFFFFFF)).astype(np.float64) / 2.0**24
        return np.asarray(np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second), np.float64)


def queueing_ns(
    hops: Hops,
    duration_ns: FloatArray,
    *,
    queue_packets: float,
    deviation: FloatArray | None = None,
) -> FloatArray:
    """Time that packets of each flow's end spend in queues, before the transport's factor.

    Args:
        hops: where the flows may collide.
        duration_ns: float64 (flows,), time each flow has been sending.
        queue_packets: longest queue the transport lets grow at a hop.
        deviation: float64 (flows,), of the slowest path from its mean, in standard deviations; None: the mean.

    Returns:
        float64 (flows,).
    """
    count = len(duration_ns)
    if not len(hops.flow):
        return np.zeros(count)
    mean, spread = reflected_queue(*hops.walk(duration_ns))
    bounded = 0.5 * queue_packets
    scale = (1.0 + (mean / bounded) ** 4) ** -0.25
    mean, spread = mean * scale * hops.packet_ns, spread * scale * hops.packet_ns
    if hops.deviation is not None:
        # All links of the hop together deviate by less than one alone.
        mean = np.maximum(mean + spread * hops.deviation / np.sqrt(hops.width), 0.0)
    total = sums(hops.flow, hops.share * mean, count)
    squares = sums(hops.flow, hops.share * spread**2, count)
    paths = np.ones(count)
    np.maximum.at(paths, hops.flow, hops.width / hops.share)
    typical, spread_of_it = _largest_normal(np.minimum(paths, PATHS_MAX))
    if deviation is not None:
        typical = np.maximum(typical + spread_of_it * deviation, 0.0)
    return total + typical * np.sqrt(squares)


def turned_away_ns(hops: Hops, duration_ns: FloatArray, *, queue_packets: float) -> FloatArray:
    """Time of the packets that find queues full, before the transport's factor.

    Args:
        hops: where the flows may collide.
        duration_ns: float64 (flows,), time each flow has been sending.
        queue_packets: where queues are full.

    Returns:
        float64 (flows,).
    """
    packets = turned_away(*hops.walk(duration_ns), queue_packets)
    return sums(hops.flow, hops.share * packets * hops.packet_ns, len(duration_ns))


def turned_away(
    time: FloatArray, variance: FloatArray, slack: FloatArray, queue_packets: float
) -> FloatArray:
    """Packets that find a queue full which was empty at time 0.

    A Brownian motion between reflecting barriers at 0 and B is pushed back from B at a rate of
    `slack / (exp(2 slack B / variance) - 1)`, which is `variance / (2 B)` without slack (Harrison 1985, section 5.5).
    Begun at 0, without slack, it is behind that by B / 6 for ever.

    Args:
        time: since the queue was empty, in packet times.
        variance: per packet time, in packets squared.
        slack: capacity that is left, in packets per packet time, not negative.
        queue_packets: the bound B.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        critical = variance / (2.0 * queue_packets)
        exponent = np.minimum(slack / critical, _EXPONENT_MAX)
        rate = np.where(exponent > _SMALL, slack / np.expm1(exponent), critical)
    rate = np.where(variance > 0, rate, 0.0)
    behind = queue_packets / 6.0 * np.divide(rate, critical, out=np.zeros_like(rate), where=critical > 0)
    return np.maximum(rate * time - behind, 0.0)


_EXPONENT_MAX = 500.0


def reflected_queue(
    time: FloatArray, variance: FloatArray, slack: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of a queue that was empty at time 0.

    A Brownian motion of drift `-slack`, reflected at zero, is distributed as the largest value of the free motion
    (Harrison, "Brownian Motion and Stochastic Flow Systems", 1985, section 1.8).

    Args:
        time: since the queue was empty, in packet times.
        variance: per packet time, in packets squared.
        slack: capacity that is left, in packets per packet time, not negative.

    Returns:
        Both in packets, of the shape of `time`.
    """
    root = np.sqrt(variance * time)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(root > 0, slack * time / root, 0.0)
        settled = np.where(slack > 0, variance / (2.0 * slack), 0.0)
    below = _normal_below(ratio)
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2.0 * np.pi)
    mean = root * (density - ratio * (1.0 - below)) + settled * (2.0 * below - 1.0)
    # Without slack the limit of the second term is as much as the first.
    mean = np.where(ratio < _SMALL, root * np.sqrt(2.0 / np.pi), mean)
    # From a half-normal (0.756 of the mean) to an exponential distribution (as much as the mean).
    relative = _HALF_NORMAL + (1.0 - _HALF_NORMAL) * np.minimum(ratio / 2.0, 1.0)
    return mean, relative * mean


_SMALL = 1e-4
_HALF_NORMAL = float(np.sqrt(np.pi / 2.0 - 1.0))


def _largest_normal(count: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation of the largest of `count` standard normal deviates, to about 2 %.

    Blom, "Statistical Estimates and Transformed Beta-Variables", 1958: the mean is near the quantile
    `(n - 3/8) / (n + 1/4)`. The deviation is interpolated in a short table.
    """
    mean = np.interp(np.log(count), _LOG_COUNT, _LARGEST_MEAN)
    return mean, np.interp(np.log(count), _LOG_COUNT, _LARGEST_DEVIATION)


_LOG_COUNT = np.log([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0])
_LARGEST_MEAN = np.array([0.0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.343, 2.594])
_LARGEST_DEVIATION = np.array([1.0, 0.826, 0.701, 0.610, 0.542, 0.490, 0.448, 0.415])


def _normal_below(value: FloatArray) -> FloatArray:
    """Standard normal distribution function for values not negative, to 1e-7.

    Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.2.17.
    """
    t = 1.0 / (1.0 + 0.2316419 * value)
    polynomial = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    return np.asarray(1.0 - np.exp(-0.5 * value**2) / np.sqrt(2.0 * np.pi) * polynomial, np.float64)
