"""How healing works; the defaults suit machines of one building as well as sites far apart."""

from dataclasses import dataclass, field

from farstep.fabric.expected import expect, expect_count, expect_number
from farstep.train.healing.image import CHUNK_BYTES, ImageLimits

__all__ = ["HealingSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealingSettings:
    """Settings of one member.

    Attributes:
        rate_mbps: upper limit of what this member sends to those it heals, in 10^6 bit/s, also while all wait; None:
            as fast as ``slowdown`` allows.
        slowdown: by how much the mean step of the healthy may be longer while state is pulled, as a fraction. Below
            the 0.15 that is promised, because a limit is found by going past it now and then.
        follow_slowdown: by how much it may be longer while gradients are sent, as a fraction. A spare for which that
            is too little dozes: see ``takeover_s``. None: gradients are never held back, whatever that costs.
        takeover_s: a spare that dozes gets the state when it is needed, while all wait. It is ready for a seat if that
            takes no longer than this, than three steps, or than a tenth of the time it has tried.
        doze_s: a spare that dozes tries again after this long, and after twice as long each time, up to ten times.
        rate_start_mbps: where the search for that rate starts; where there is room it is ten times as fast after two
            seconds.
        rate_min_mbps: what healing gets whatever steps do, so that it ends.
        log_bytes_max: memory for the gradients of past steps that somebody still needs; what no longer fits is
            dropped, and whoever needed it takes a new snapshot.
        chunk_bytes: of an image.
        chunks_in_flight: chunks asked of one source at a time: enough to fill a link of 800 Mbit/s over 40 ms.
        gradients_in_flight: steps a follower asks for ahead.
        ping_interval_s: how often a follower asks its sources how they are.
        silence_s: a source that has not answered for so long is given up.
        linger_s: how long a source keeps what a receiver needs after the connection to it broke.
        reconnect_s: pause before a source that failed is tried again.
        hedge_s: a step that others have and the asked source has not sent for so long is asked of another too.
        niceness: of the threads that hash and prepare memory, 0..19.
        limits: what is accepted from peers.
    """

    rate_mbps: float | None = None
    slowdown: float = 0.10
    follow_slowdown: float | None = 0.15
    takeover_s: float = 10.0
    doze_s: float = 60.0
    rate_start_mbps: float = 200.0
    rate_min_mbps: float = 40.0
    log_bytes_max: int = 512 << 20
    chunk_bytes: int = CHUNK_BYTES
    chunks_in_flight: int = 4
    gradients_in_flight: int = 4
    ping_interval_s: float = 0.25
    silence_s: float = 3.0
    linger_s: float = 10.0
    reconnect_s: float = 0.5
    hedge_s: float = 0.3
    niceness: int = 10
    limits: ImageLimits = field(default_factory=ImageLimits)

    def __post_init__(self) -> None:
        for name in (
            "slowdown",
            "takeover_s",
            "doze_s",
            "rate_start_mbps",
            "rate_min_mbps",
            "ping_interval_s",
            "silence_s",
            "reconnect_s",
            "hedge_s",
        ):
            expect_number(name, getattr(self, name))
        expect_number("linger_s", self.linger_s, least=0.0)
        expect_number("rate_mbps", self.rate_mbps, may_be_none=True)
        expect_number("follow_slowdown", self.follow_slowdown, may_be_none=True)
        expect_count("log_bytes_max", self.log_bytes_max, least=1)
        for name in ("chunks_in_flight", "gradients_in_flight"):
            expect_count(name, getattr(self, name), least=1, most=64)
        expect_count("chunk_bytes", self.chunk_bytes, least=1024, most=1 << 30)
        expect_count("niceness", self.niceness, most=19)
        expect("limits", self.limits, ImageLimits, "a farstep.train.healing.ImageLimits")
