"""What a user configures about MRC: which paths to spread over, and how to control congestion.

Everything is frozen and checked when it is built; an `InvalidFieldError` names the field, the value and what
would be valid. A knob that is None is derived: from the round-trip time for probing, by `NsccScaling` for
congestion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from farstep.mrc.errors import InvalidFieldError, check_range

__all__ = [
    "ALGORITHM_NONE",
    "ALGORITHM_NSCC",
    "EVS_MAX",
    "CongestionProfile",
    "DampingProfile",
    "EvEntry",
    "EvProfile",
    "NsccScaling",
    "ProfileMode",
    "Share",
]

EVS_MAX = 1024
SKIP_PASSES_MAX = 1000
"""Entropy values of one connection, active and backup together; MRC uses 128 to 256 active ones."""
PLANES_MAX = 32
"""Width of the port status mask on the wire."""
ACTIVE_DEFAULT_MAX = 256
"""Most active entropy values that `EvProfile.sized_for` chooses."""
ACTIVE_PER_PLANE_MIN = 8
"""Fewest active entropy values per plane that `EvProfile.sized_for` chooses."""
PROBE_INTERVAL_MIN_NS = 1_000_000
PROBE_INTERVAL_RTTS = 32

ProfileMode = Literal["generated", "explicit"]
Share = Literal["equal", "capacity"]
ALGORITHM_NSCC = "uet-1.0-nscc"
ALGORITHM_NONE = "none"

_HOUR_NS = 3_600 * 10**9
_REFERENCE_BDP_BYTES = 150_000  # the network NSCC was tuned on: 100 Gb/s, 12 us (UET 1.0, 3.6.13)
_REFERENCE_RTT_NS = 12_000
_NOMINAL_HEADER_BYTES = 40


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidFieldError(name, value, " or ".join(repr(choice) for choice in choices))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvEntry:
    """One path of an explicit profile: the 32 bits of the entropy value and the plane (port) it leaves by."""

    value: int
    plane: int = 0

    def __post_init__(self) -> None:
        check_range("value", self.value, 0, 2**32 - 1)
        check_range("plane", self.plane, 0, PLANES_MAX - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DampingProfile:
    """Keeps a flapping path out: each relapse doubles the probes it must answer before it carries data again.

    Attributes:
        successes_max: the most consecutive answers ever asked for.
        window_ns: condemned again within this time after its return counts as a relapse.
        reset_ns: this long without a relapse and the path starts afresh.
    """

    successes_max: int = 160
    window_ns: int = 10_000_000_000
    reset_ns: int = 60_000_000_000

    def __post_init__(self) -> None:
        check_range("successes_max", self.successes_max, 1, 1_000_000)
        check_range("window_ns", self.window_ns, 0, _HOUR_NS)
        check_range("reset_ns", self.reset_ns, self.window_ns, 24 * _HOUR_NS)

    def successes_after(self, relapses: int, restore_successes: int) -> int:
        """Returns how many consecutive answers bring a path back that has relapsed `relapses` times in a row.

        >>> [DampingProfile().successes_after(n, 5) for n in range(7)]
        [5, 10, 20, 40, 80, 160, 160]
        """
        check_range("relapses", relapses, 0, 10_000)
        return min(restore_successes << min(relapses, 20), max(self.successes_max, restore_successes))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvProfile:
    """The paths of a connection and when they are given up and taken back.

    Invariant of MRC: every plane keeps the same number of active entropy values, and one that fails is
    replaced from the same plane. An unequal share looks like incast to the receiver.

    Attributes:
        mode: `generated` draws values at random, others for each connection; `explicit` uses `entries`.
        active_per_plane: values in rotation.
        backup_per_plane: values that replace failed ones.
        min_active: losses never push the number of good values below this; None: a quarter of the active.
        skip_passes: turns of the rotation a marked value sits out; the rest of the current one at least.
        share: `equal` bytes on every plane, or in proportion to the `capacity` each turns out to have.
        probe_interval_ns: between two probes of one failed value; None: max(1 ms, 32 round trips).
        probe_spacing_ns: between any two probes of a connection.
        restore_successes: consecutive answers that bring a failed value back.
        damping: what a relapse costs.
        entries: the paths of an explicit profile; within a plane the first `active_per_plane` are active and
            the next `backup_per_plane` are backup.
    """

    mode: ProfileMode = "generated"
    active_per_plane: int = 64
    backup_per_plane: int = 32
    min_active: int | None = None
    skip_passes: int = 1
    share: Share = "equal"
    probe_interval_ns: int | None = None
    probe_spacing_ns: int = 50_000
    restore_successes: int = 5
    damping: DampingProfile = field(default_factory=DampingProfile)
    entries: tuple[EvEntry, ...] = ()

    def __post_init__(self) -> None:
        _check_choice("mode", self.mode, get_args(ProfileMode))
        _check_choice("share", self.share, get_args(Share))
        check_range("active_per_plane", self.active_per_plane, 1, EVS_MAX)
        check_range("backup_per_plane", self.backup_per_plane, 0, EVS_MAX - self.active_per_plane)
        if self.min_active is not None:
            check_range("min_active", self.min_active, 0, EVS_MAX)
        if self.probe_interval_ns is not None:
            check_range("probe_interval_ns", self.probe_interval_ns, 1_000, _HOUR_NS)
        check_range("skip_passes", self.skip_passes, 0, SKIP_PASSES_MAX)
        check_range("probe_spacing_ns", self.probe_spacing_ns, 0, _HOUR_NS)
        check_range("restore_successes", self.restore_successes, 1, self.damping.successes_max)
        if (self.mode == "explicit") != bool(self.entries):
            valid = "at least one entry with mode 'explicit', none with 'generated'"
            raise InvalidFieldError("entries", f"{len(self.entries)} entries", valid)
        if self.entries:
            self._check_entries()

    def _check_entries(self) -> None:
        if len(set(self.entries)) != len(self.entries):
            raise InvalidFieldError("entries", "repeated entries", "each value at most once per plane")
        planes = sorted({entry.plane for entry in self.entries})
        if planes != list(range(len(planes))):
            raise InvalidFieldError("entries", f"planes {planes}", "planes numbered from 0 without a gap")
        for plane in planes:
            entries = sum(entry.plane == plane for entry in self.entries)
            needed = self.active_per_plane + self.backup_per_plane
            if entries != needed:
                valid = f"{needed} for every plane (active_per_plane + backup_per_plane)"
                raise InvalidFieldError("entries", f"{entries} entries for plane {plane}", valid)
        check_range("len(entries)", len(self.entries), 1, EVS_MAX)

    def num_active(self, num_planes: int) -> int:
        """Number of values in rotation over `num_planes` planes."""
        check_range("num_planes", num_planes, 1, PLANES_MAX)
        per_plane = self.active_per_plane + self.backup_per_plane
        check_range("num_planes * (active_per_plane + backup_per_plane)", num_planes * per_plane, 1, EVS_MAX)
        return num_planes * self.active_per_plane

    def min_active_of(self, num_planes: int) -> int:
        """The floor below which losses are not obeyed; unless it is set, at least one value per plane."""
        if self.min_active is not None:
            return min(self.min_active, self.num_active(num_planes))
        return max(self.num_active(num_planes) // 4, num_planes)

    def probe_interval_of(self, rtt_ns: int) -> int:
        """Nanoseconds between two probes of one failed value at this round-trip time."""
        if self.probe_interval_ns is not None:
            return self.probe_interval_ns
        return max(PROBE_INTERVAL_MIN_NS, PROBE_INTERVAL_RTTS * rtt_ns)

    @classmethod
    def sized_for(cls, *, rate_gbps: float, base_rtt_ns: int, mtu_bytes: int, num_planes: int) -> EvProfile:
        """Returns a generated profile with about one congestion window of paths, equally over the planes.

        At least 1.5 bandwidth-delay products of packets and 8 per plane, at most 256 in all; half as many are
        backup.

        >>> EvProfile.sized_for(
        ...     rate_gbps=400, base_rtt_ns=8_000, mtu_bytes=4096, num_planes=4
        ... ).active_per_plane
        37
        """
        check_range("num_planes", num_planes, 1, PLANES_MAX)
        scaling = NsccScaling.derive(
            rate_gbps=rate_gbps, base_rtt_ns=base_rtt_ns, mtu_bytes=mtu_bytes, trimming=False
        )
        wanted = math.ceil(scaling.max_cwnd_bytes / mtu_bytes / num_planes)
        most = max(ACTIVE_DEFAULT_MAX // num_planes, ACTIVE_PER_PLANE_MIN)
        active = min(max(wanted, ACTIVE_PER_PLANE_MIN), most)
        return cls(active_per_plane=active, backup_per_plane=active // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class NsccScaling:
    """The constants of NSCC for one network, from those of the network it was tuned on (UET 1.0, 3.6.13).

    With a = BDP / 150 kB and b = target / 12 us. Bytes and gains refer to payload.

    Attributes:
        bdp_bytes: bandwidth-delay product.
        scale_a: a above.
        scale_b: b above.
        target_delay_ns: queueing delay the window is steered to.
        max_cwnd_bytes: upper limit of the window, also its initial value.
        min_cwnd_bytes: lower limit: one packet with its nominal header.
        alpha_bytes_per_ns: gain of the proportional increase per nanosecond below target, over one window.
        fi_bytes: fair increase over one window.
        fi_scale: share of acknowledged bytes the fast increase adds.
        eta_bytes: increase once per adjustment period.
        gamma: strength of the multiplicative decrease.
        max_md_jump: a decrease keeps at least this share of the window.
        delay_weight: weight of one sample in the average delay.
        adjust_bytes: acknowledged bytes after which increases take effect.
        adjust_period_ns: time after which they take effect anyway.
        quick_adapt: whether a collapse of throughput sets the window to what was delivered.
        qa_gate: quick adapt acts only below `max_cwnd_bytes / 2**qa_gate`.
        qa_threshold_ns: delay that triggers quick adapt; None: delay alone never does.
    """

    bdp_bytes: float
    scale_a: float
    scale_b: float
    target_delay_ns: int
    max_cwnd_bytes: int
    min_cwnd_bytes: int
    alpha_bytes_per_ns: float
    fi_bytes: float
    fi_scale: float
    eta_bytes: float
    gamma: float
    max_md_jump: float
    delay_weight: float
    adjust_bytes: int
    adjust_period_ns: int
    quick_adapt: bool
    qa_gate: int
    qa_threshold_ns: int | None

    @classmethod
    def derive(cls, *, rate_gbps: float, base_rtt_ns: int, mtu_bytes: int, trimming: bool) -> NsccScaling:
        """Applies the scaling table.

        Args:
            rate_gbps: of the whole NIC, all planes together, in 10^9 bit/s.
            base_rtt_ns: round trip without queues.
            mtu_bytes: payload of a full packet.
            trimming: whether switches trim packets instead of dropping them.

        >>> row = NsccScaling.derive(rate_gbps=100, base_rtt_ns=12_000, mtu_bytes=4096, trimming=True)
        >>> row.max_cwnd_bytes, row.target_delay_ns, row.fi_bytes
        (225000, 9000, 20480.0)

        Raises:
            InvalidFieldError: an argument is not positive or beyond what NSCC can be asked for.
        """
        check_range("rate_gbps", rate_gbps, 0.001, 100_000, whole=False)
        check_range("base_rtt_ns", base_rtt_ns, 100, 10_000_000_000)
        check_range("mtu_bytes", mtu_bytes, 64, 65_000)
        bdp_bytes = rate_gbps * base_rtt_ns / 8
        scale_a = bdp_bytes / _REFERENCE_BDP_BYTES
        target_ns = base_rtt_ns - base_rtt_ns // 4 if trimming else base_rtt_ns
        scale_b = target_ns / _REFERENCE_RTT_NS
        min_cwnd_bytes = mtu_bytes + _NOMINAL_HEADER_BYTES
        return cls(
            bdp_bytes=bdp_bytes,
            scale_a=scale_a,
            scale_b=scale_b,
            target_delay_ns=target_ns,
            max_cwnd_bytes=max(round(1.5 * bdp_bytes), min_cwnd_bytes),
            min_cwnd_bytes=min_cwnd_bytes,
            alpha_bytes_per_ns=_proportional_gain(bdp_bytes, target_ns, mtu_bytes),
            fi_bytes=5 * mtu_bytes * scale_a,
            fi_scale=0.25 * scale_a,
            eta_bytes=0.15 * mtu_bytes * scale_a,
            gamma=0.8,
            max_md_jump=0.5,
            delay_weight=0.0125,
            adjust_bytes=8 * mtu_bytes,
            adjust_period_ns=base_rtt_ns,
            quick_adapt=True,
            qa_gate=3,
            qa_threshold_ns=None if trimming else 4 * target_ns,
        )

    @property
    def max_proportional_gain_bytes(self) -> float:
        """What one window gains at zero queueing delay by the proportional increase."""
        return self.alpha_bytes_per_ns * self.target_delay_ns

    def ecn_range_bytes(self, num_planes: int) -> tuple[float, float]:
        """Queue depths between which a switch marks with rising probability: 0.2 and 0.8 BDP of one plane."""
        check_range("num_planes", num_planes, 1, PLANES_MAX)
        plane_bdp_bytes = self.bdp_bytes / num_planes
        return 0.2 * plane_bdp_bytes, 0.8 * plane_bdp_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CongestionProfile:
    """How a sender controls congestion toward one destination. A knob that is None follows `NsccScaling`.

    Attributes:
        algorithm: `uet-1.0-nscc`, or `none`: the window stays at `max_cwnd_bytes`.
        rate_gbps: of all ports together; None: learned.
        base_rtt_ns: round trip without queues; None: the least measured.
        trimming: whether the switches trim instead of dropping.
        quick_adapt: False is the knob `disable_qa` of the controller interface.
        qa_gate: see `NsccScaling`, like all that follow.
    """

    algorithm: str = ALGORITHM_NSCC
    rate_gbps: float | None = None
    base_rtt_ns: int | None = None
    trimming: bool = False
    quick_adapt: bool = True
    qa_gate: int = 3
    qa_threshold_ns: int | None = None
    target_delay_ns: int | None = None
    max_cwnd_bytes: int | None = None
    adjust_bytes: int | None = None
    adjust_period_ns: int | None = None
    fi_bytes: float | None = None
    fi_scale: float | None = None
    eta_bytes: float | None = None
    gamma: float = 0.8
    max_md_jump: float = 0.5

    def __post_init__(self) -> None:
        _check_choice("algorithm", self.algorithm, (ALGORITHM_NSCC, ALGORITHM_NONE))
        if self.algorithm == ALGORITHM_NONE and self.max_cwnd_bytes is None:
            raise InvalidFieldError("max_cwnd_bytes", None, "a number of bytes when algorithm is 'none'")
        check_range("qa_gate", self.qa_gate, 0, 16)
        check_range("gamma", self.gamma, 0, 1, whole=False)
        check_range("max_md_jump", self.max_md_jump, 0, 1, whole=False)
        for name, (low, high, whole) in _KNOB_RANGES.items():
            value = getattr(self, name)
            if value is not None:
                check_range(name, value, low, high, whole=whole)

    def resolve(self, *, rate_gbps: float, base_rtt_ns: int, mtu_bytes: int) -> NsccScaling:
        """Returns every constant: derived for this network, except for the knobs that are set.

        `rate_gbps` and `base_rtt_ns` of the profile win over the arguments, which are what was measured. A
        target delay that is set also decides the gain of the proportional increase, as in the scaling table.
        """
        derived = NsccScaling.derive(
            rate_gbps=self.rate_gbps if self.rate_gbps is not None else rate_gbps,
            base_rtt_ns=self.base_rtt_ns if self.base_rtt_ns is not None else base_rtt_ns,
            mtu_bytes=mtu_bytes,
            trimming=self.trimming,
        )
        if self.target_delay_ns is not None:
            derived = _with_target(derived, self.target_delay_ns, mtu_bytes, self.trimming)
        return replace(
            derived,
            quick_adapt=self.quick_adapt,
            qa_gate=self.qa_gate,
            gamma=self.gamma,
            max_md_jump=self.max_md_jump,
            qa_threshold_ns=_set_or(self.qa_threshold_ns, derived.qa_threshold_ns),
            max_cwnd_bytes=max(self.max_cwnd_bytes or derived.max_cwnd_bytes, derived.min_cwnd_bytes),
            adjust_bytes=self.adjust_bytes or derived.adjust_bytes,
            adjust_period_ns=self.adjust_period_ns or derived.adjust_period_ns,
            fi_bytes=derived.fi_bytes if self.fi_bytes is None else self.fi_bytes,
            fi_scale=derived.fi_scale if self.fi_scale is None else self.fi_scale,
            eta_bytes=derived.eta_bytes if self.eta_bytes is None else self.eta_bytes,
        )


def _proportional_gain(bdp_bytes: float, target_ns: int, mtu_bytes: int) -> float:
    """alpha: what one window gains per nanosecond below target.

    The published gain grows with the square of the round-trip time. Beyond one bandwidth-delay product per
    window it only overshoots, so between sites it stops there.
    """
    scale_a, scale_b = bdp_bytes / _REFERENCE_BDP_BYTES, target_ns / _REFERENCE_RTT_NS
    return min(4 * mtu_bytes * scale_a * scale_b, max(bdp_bytes, mtu_bytes)) / target_ns


def _set_or(value: int | None, derived: int | None) -> int | None:
    return derived if value is None else value


def _with_target(derived: NsccScaling, target_ns: int, mtu_bytes: int, trimming: bool) -> NsccScaling:
    return replace(
        derived,
        target_delay_ns=target_ns,
        scale_b=target_ns / _REFERENCE_RTT_NS,
        alpha_bytes_per_ns=_proportional_gain(derived.bdp_bytes, target_ns, mtu_bytes),
        qa_threshold_ns=None if trimming else 4 * target_ns,
    )


# Lowest and highest value of each knob that may be None, and whether it is a whole number.
_KNOB_RANGES: dict[str, tuple[float, float, bool]] = {
    "rate_gbps": (0.001, 100_000, False),
    "base_rtt_ns": (100, 10_000_000_000, True),
    "qa_threshold_ns": (1, _HOUR_NS, True),
    "target_delay_ns": (1, 10_000_000_000, True),
    "max_cwnd_bytes": (64, 2**40, True),
    "adjust_bytes": (1, 2**40, True),
    "adjust_period_ns": (1, _HOUR_NS, True),
    "fi_bytes": (0, 2**40, False),
    "fi_scale": (0, 1_000_000, False),
    "eta_bytes": (0, 2**40, False),
}
