"""Against htsim: its traffic matrices and topologies, and what became of every flow there.

The folder of data holds `tm/*.cm`, `topo/*.topo` and `out/*.csv` (or `.xz`), see its README. htsim ran each case with
one seed; here each runs with several. Where no draw of ours can be told apart from htsim's, the figures need not be
closer than the seeds are to each other.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import lzma
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.topology import Topology, load_topology
from farstep.sim.reproduce.progress import announced
from farstep.sim.reproduce.record import Effort, Finding, Measure, Verdict
from farstep.sim.reproduce.runs import run, streams
from farstep.sim.result import SimResult
from farstep.sim.tasks import TaskTable
from farstep.sim.workloads.matrices import read_matrix

__all__ = ["CASES", "HEAD", "Case", "Times", "compare_all", "htsim_rows", "not_run", "settings_of"]

PAYLOAD_BYTES, HEADER_BYTES = 4086, 64
QUEUE_BYTES = 43 * 4150
SLOT_US = 0.332
"""A full packet at 100 Gb/s."""
BAND_MEDIAN, BAND_TAIL, BAND_CREDIT, BAND_RATIO = 0.03, 0.07, 0.02, 0.15
FEW = 10
"""Flows below which there is no distribution to compare."""
INCAST_PACKETS, INCAST_RTT_US = 7_840, 12.8
DEGRADED_SHARE = 0.25

_COMMON: Mapping[str, Any] = {
    "mtu_bytes": PAYLOAD_BYTES,
    "overhead_bytes": HEADER_BYTES,
    "control_bytes": HEADER_BYTES,
    "trimmed_bytes": HEADER_BYTES,
    "queue_limit_bytes": QUEUE_BYTES,
    "last_hop_limit_bytes": QUEUE_BYTES,
    "ecn_min_bytes": 37_350,
    "ecn_max_bytes": 145_250,
    "last_hop_ecn": True,
    "completes_at_source": True,
}
_ROOM_BY_RATE: Mapping[str, Any] = {
    "queue_limit_bytes": 0,
    "ecn_min_bytes": -1,
    "ecn_max_bytes": -1,
    "base_rtt_ns": QUEUE_BYTES * 8 / 100,
}
"""As much room and the same marks at 100 Gb/s, less on slower links: its queues hold a round trip of their link."""
Times = NDArray[np.float64]

HEAD = """# Against htsim

[htsim](https://github.com/ultraethernet/uet-htsim) is the reference simulator of Ultra Ethernet. Its traffic
matrices, topologies and per-flow results are read as they are (they lie with the acceptance tests, with the
commands that made them), and each case is run here with the transport of the same name: packets of 4,150 B,
queues of 43 packets, marks between 37,350 and 145,250 B, trimming, 64 entropy values. Made by `farstep
reproduce htsim tests/acceptance/data/htsim --out docs/validation`.

The bands: medians within 3 %, P99 within 7 %, the order of the load balancers, the ratio of tails with degraded
links within 15 %, an incast with receiver credit within 2 % of its bound and one round trip. htsim's figures
are of one seed; where they lie between the least and the greatest of ours, they cannot be told from a seed of
ours: their verdict is "within seeds". MRC has no like in htsim; it is shown where it tells something.
"""

_EXPLAINED: Mapping[str, str] = {
    "uec_rccc_a2a128": "receivers here share their credit more evenly: all flows end earlier than in htsim, where more"
    " of them are very short and more very long",
    "x_perm128_ecmp1path": "which flows share a path is drawn by another hash",
    "uec_nscc_obl_perm128": "packets of a slotted fabric meet in a queue in the same instant, htsim's spread over it;"
    " with 1,024 hosts the tail is in its band",
}
"""What is known of a row outside its band."""


def settings_of(**changes: Any) -> dict[str, Any]:
    """Settings of all cases, by the engine's names, with some changed."""
    return {**_COMMON, **changes}


_NSCC: Mapping[str, Any] = {"qa_threshold_ns": 42_068}
"""Four times htsim's target delay, which it computes from the round trip of its longest path."""
_LIKE: Mapping[str, Mapping[str, Any]] = {
    **{f"uet-{spread}": _NSCC for spread in ("oblivious", "bitmap", "reps", "mixed")},
    "uet-rccc": {"last_hop_ecn": False},
    "ndp": {"initial_packets": 50},
}
"""What htsim does differently with a transport."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of htsim, and what is its like here.

    Attributes:
        id: name of htsim's run, by which its results are found.
        matrix: traffic matrix.
        topology: topology file.
        transport: the like of htsim's.
        label: what the table calls htsim's transport.
        settings: knobs of the transport.
        seeds_max: no more seeds than that, for the long ones.
        is_degraded: four links from the core run at a quarter of their rate.
        of_flows: durations of flows are compared, too; for chains of them.
        with_mrc: MRC is shown beside it.
        is_slow: left out of a quick comparison.
    """

    id: str
    matrix: str
    topology: str = "ft128_100g"
    transport: str = "uet-reps"
    label: str = "NSCC + REPS"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds_max: int = 20
    is_degraded: bool = False
    of_flows: bool = False
    with_mrc: bool = False
    is_slow: bool = False


_PERM, _BIG, _INCAST, _ALL, _RING = (
    "perm_128_2MB", "perm_1024_2MB", "incast_128_32to1_1MB", "a2a_128_par8_100KB", "ring_128_g128_100KB",
)  # fmt: skip

_MATRIX_MB: Mapping[str, int] = {
    _PERM: 256,
    _BIG: 2_048,
    _INCAST: 64,
    _ALL: 1_626,
    _RING: 3_251,
    "ring_1024_g64_100KB": 12_902,
}
"""What a matrix sends, on which depends how long it takes; the incast's packets are sent twice."""

CASES: tuple[Case, ...] = (
    Case(id="x_two_to_one", matrix="two_to_one_128_2MB"),
    Case(id="uec_nscc_reps_perm128", matrix=_PERM, with_mrc=True),
    Case(id="uec_nscc_obl_perm128", matrix=_PERM, transport="uet-oblivious", label="NSCC oblivious"),
    Case(id="x_perm128_bitmap", matrix=_PERM, transport="uet-bitmap", label="NSCC bitmap"),
    Case(id="x_perm128_mixed", matrix=_PERM, transport="uet-mixed", label="NSCC mixed"),
    Case(
        id="x_perm128_ecmp1path",
        matrix=_PERM,
        transport="uet-oblivious",
        label="NSCC, one path",
        settings={"entropies": 1},
    ),
    Case(id="uec_rccc_perm128", matrix=_PERM, transport="uet-rccc", label="RCCC"),
    Case(id="ndp_perm128_mtu4150", matrix=_PERM, transport="ndp", label="NDP, 4,150 B"),
    Case(id="x_perm128_failed4_reps", matrix=_PERM, is_degraded=True, with_mrc=True),
    Case(
        id="x_perm128_failed4_oblivious",
        matrix=_PERM,
        transport="uet-oblivious",
        label="NSCC oblivious",
        is_degraded=True,
    ),
    Case(id="uec_nscc_reps_incast128", matrix=_INCAST, with_mrc=True),
    Case(id="uec_rccc_incast128", matrix=_INCAST, transport="uet-rccc", label="RCCC"),
    Case(id="ndp_incast128", matrix=_INCAST, transport="ndp", label="NDP, 4,150 B"),
    Case(id="uec_nscc_reps_a2a128", matrix=_ALL, of_flows=True, seeds_max=3, with_mrc=True, is_slow=True),
    Case(
        id="uec_rccc_a2a128",
        matrix=_ALL,
        transport="uet-rccc",
        label="RCCC",
        of_flows=True,
        seeds_max=3,
        is_slow=True,
    ),
    Case(
        id="ndp_a2a128_mtu4150", matrix=_ALL, transport="ndp", label="NDP, 4,150 B", seeds_max=3, is_slow=True
    ),
    Case(id="uec_nscc_reps_ring128", matrix=_RING, of_flows=True, seeds_max=3, with_mrc=True, is_slow=True),
    Case(
        id="uec_nscc_reps_perm1024",
        matrix=_BIG,
        topology="ft1024_100g",
        seeds_max=10,
        with_mrc=True,
        is_slow=True,
    ),
    Case(
        id="uec_nscc_obl_perm1024",
        matrix=_BIG,
        topology="ft1024_100g",
        transport="uet-oblivious",
        label="NSCC oblivious",
        seeds_max=10,
        is_slow=True,
    ),
    Case(
        id="uec_rccc_perm1024",
        matrix=_BIG,
        topology="ft1024_100g",
        transport="uet-rccc",
        label="RCCC",
        seeds_max=10,
        is_slow=True,
    ),
    Case(
        id="uec_nscc_reps_ring1024",
        matrix="ring_1024_g64_100KB",
        topology="ft1024_100g",
        of_flows=True,
        seeds_max=1,
        is_slow=True,
    ),
)
"""Every row of htsim's results that has its like here."""


def not_run() -> list[tuple[str, str]]:
    """Rows of htsim's results that have no like here, and why."""
    return [
        (
            "EQDS (perm 128, perm 1,024)",
            "its pacer and 128 paths are not modelled; RCCC, which grew out of it, is compared instead",
        ),
        (
            "NDP with 9 KB packets (perm 128, perm 1,024)",
            "ran with that program's own default queues; the rows with packets of 4,150 B are compared",
        ),
        (
            "perm 128 on 2, 4, 8 planes",
            "htsim sizes the window for the rate of one plane, so its flows wait for the window (108.8 us on"
            " four planes"
            " where the wires need 56); a topology file of htsim describes one plane",
        ),
        ("perm 8,192", "its per-flow results are not among the data"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class HtsimRows:
    """Per-flow results of one run of htsim.

    Attributes:
        finish_us: time of the last acknowledgement, per flow, sorted.
        lasted_us: duration, per flow, sorted; empty where the run did not print starts.
    """

    finish_us: NDArray[np.float64]
    lasted_us: NDArray[np.float64]


def htsim_rows(folder: Path, name: str) -> HtsimRows:
    """Reads the results of one run.

    Raises:
        FileNotFoundError: there are none of that name.
    """
    with _open(folder / "out" / f"{name}.csv") as lines:
        rows = list(csv.DictReader(lines))
    finish = np.array([float(row["finish_us"]) for row in rows])
    starts = [row.get("start_us") or "" for row in rows]
    lasted = finish - np.array([float(start) for start in starts]) if all(starts) else np.zeros(0)
    return HtsimRows(finish_us=np.sort(finish), lasted_us=np.sort(lasted))


def _open(path: Path) -> TextIO:
    return path.open(encoding="ascii") if path.exists() else lzma.open(f"{path}.xz", "rt", encoding="ascii")


@functools.lru_cache(maxsize=4)
def _inputs(folder: Path, matrix: str, topology: str) -> tuple[Topology, TaskTable]:
    path = folder / "tm" / f"{matrix}.cm"
    tasks = read_matrix(path if path.exists() else path.with_suffix(".cm.xz"))
    return load_topology(folder / "topo" / f"{topology}.topo"), tasks


def _degraded(topology: Topology) -> Topology:
    """What `-failed 4` does: links from the core down to the first aggregation switch run at 25 Gb/s."""
    links = topology.resolve("link:t1/p0/0-t2/*/*")
    down = links[topology.node_tier[topology.link_source[links]] == 2]
    rates = topology.link_rate_gbps.copy()
    rates[down] *= DEGRADED_SHARE
    return dataclasses.replace(topology, link_rate_gbps=rates)


def simulated(folder: Path, case: Case, seed: int, *, transport: str | None = None) -> SimResult:
    """Runs one case here."""
    topology, tasks = _inputs(folder, case.matrix, case.topology)
    is_other = transport is not None and transport != case.transport
    settings = {} if is_other else {**_LIKE.get(case.transport, {}), **case.settings}
    if case.is_degraded:
        topology, settings = _degraded(topology), {**settings, **_ROOM_BY_RATE}
    return run(topology, tasks, transport or case.transport, seed=seed, **settings_of(**settings))


def _figures(result: SimResult, of_flows: bool) -> NDArray[np.float64]:
    flows = result.tasks.is_flow
    start = result.start_ns[flows] if of_flows else 0
    return np.asarray((result.finish_ns[flows] - start) / 1000.0, np.float64)


_QUANTILES: Sequence[tuple[str, Callable[[NDArray[np.float64]], float], float | None]] = (
    ("min", lambda times: float(times.min()), None),
    ("median", lambda times: float(np.median(times)), BAND_MEDIAN),
    ("P99", lambda times: float(np.percentile(times, 99)), BAND_TAIL),
    ("max", lambda times: float(times.max()), None),
)


def compare_case(
    folder: Path, case: Case, effort: Effort, keep: dict[str, NDArray[np.float64]] | None = None
) -> list[Finding]:
    """Compares one case, and shows MRC in it where that is asked for.

    Args:
        folder: the data.
        case: what to compare.
        effort: how many seeds.
        keep: takes the times of the first seed, and htsim's, by name, for plots.
    """
    seeds = list(effort.range())[: case.seeds_max]
    theirs = htsim_rows(folder, case.id)
    findings = []
    for transport in (case.transport, *(("mrc",) if case.with_mrc else ())):
        results = [simulated(folder, case, seed, transport=transport) for seed in seeds]
        is_like = transport == case.transport
        measures = _measures("", [_figures(r, False) for r in results], theirs.finish_us, is_like)
        if case.of_flows and len(theirs.lasted_us):
            measures += _measures("flow ", [_figures(r, True) for r in results], theirs.lasted_us, is_like)
        repeats = [float(r.retransmitted.sum()) for r in results]
        measures.append(Measure.of("retransmitted", repeats))
        verdict, note = (
            _judged(case.id, measures) if is_like else (Verdict.SHOWN, "not in htsim; for comparison")
        )
        findings.append(
            Finding(
                id=case.id if is_like else f"{case.id} (mrc)",
                title=f"{_what(case)}, {case.label if is_like else 'MRC'}",
                published="",
                setup=f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed",
                measures=tuple(measures),
                verdict=verdict,
                note=note,
            )
        )
        if keep is not None:
            keep[f"{case.id}/{transport}"] = _figures(results[0], case.of_flows)
    if keep is not None:
        keep[f"{case.id}/htsim"] = theirs.lasted_us if case.of_flows else theirs.finish_us
    return findings


def _what(case: Case) -> str:
    words = {
        "two_to_one_128_2MB": "2:1 x 2 MB",
        _PERM: "perm 128 x 2 MB",
        _INCAST: "incast 32:1 x 1 MB",
        _ALL: "all-to-all 128 x 100 KB",
        _RING: "ring 128 x 100 KB",
        _BIG: "perm 1,024 x 2 MB",
        "ring_1024_g64_100KB": "16 rings of 64 x 100 KB",
    }
    return words[case.matrix] + (", 4 links at 25 Gb/s" if case.is_degraded else "")


def _measures(
    prefix: str, ours: Sequence[NDArray[np.float64]], theirs: NDArray[np.float64], is_like: bool
) -> list[Measure]:
    found = []
    for name, quantile, usual in _QUANTILES:
        target = quantile(theirs)
        # Which of two flows comes first is chance; when the last one ends is not.
        band = usual if len(theirs) >= FEW else BAND_MEDIAN if name == "max" else None
        low, high = (target * (1 - band), target * (1 + band)) if band and is_like else (None, None)
        found.append(Measure.of(f"{prefix}{name} us", [quantile(times) for times in ours], low, high, target))
    return found


def _judged(name: str, measures: Sequence[Measure]) -> tuple[Verdict, str]:
    verdict, note = _verdict(measures)
    why = _EXPLAINED.get(name)
    return verdict, f"{note}: {why}" if why and verdict is not Verdict.MET else note


def _verdict(measures: Sequence[Measure]) -> tuple[Verdict, str]:
    """Met if all medians over seeds are in their bands; within seeds if htsim's single seed is among ours."""
    missed = [m for m in measures if m.is_judged and not m.is_met]
    outside = [m for m in missed if m.target is not None and not min(m.values) <= m.target <= max(m.values)]
    if not missed:
        return Verdict.MET, ""
    text = ", ".join(f"{m.name.removesuffix(' us')} {_off(m)}" for m in missed)
    if not outside:
        return Verdict.WITHIN_SEEDS, text
    return Verdict.NOT_MET, text


def _off(measure: Measure) -> str:
    assert measure.target
    return f"{100 * (measure.median / measure.target - 1):+.1f} %"


def closed_forms(folder: Path) -> list[Finding]:
    """What arithmetic says of single flows and of the incast."""
    topology, _ = _inputs(folder, "one_128_2MB", "ft128_100g")
    rows = [
        ("one flow of 2 MB across pods", "one_128_2MB", 176.20, 0.02),
        ("one flow of 64 KB across pods", "one_128_64KB", 18.89, 0.04),
    ]
    findings = []
    for title, matrix, expected, off in rows:
        _, tasks = _inputs(folder, matrix, "ft128_100g")
        found = _figures(run(topology, tasks, "uet-reps", **settings_of()), False)[0]
        mrc = _figures(run(topology, tasks, "mrc", **settings_of()), False)[0]
        findings.append(_exact(title, matrix, found, expected, off, mrc))
    tasks = streams([0], [1], 2_000_000)
    found = _figures(run(topology, tasks, "uet-reps", **settings_of()), False)[0]
    mrc = _figures(run(topology, tasks, "mrc", **settings_of()), False)[0]
    findings.append(_exact("one flow of 2 MB within a rack", "same_tor", found, 166.85, 0.02, mrc))
    return findings


def _exact(title: str, id_: str, found: float, expected: float, off: float, mrc: float) -> Finding:
    measure = Measure.of("finish us", found, expected - off, expected + off, expected)
    return Finding(
        id=id_,
        title=title,
        published=f"{expected} us by arithmetic",
        setup="1 run",
        measures=(measure, Measure.of("MRC us", mrc)),
        verdict=Verdict.MET if measure.is_met else Verdict.NOT_MET,
    )


def _order(found: Mapping[str, Finding]) -> list[Finding]:
    """Rows that hold several cases against each other."""
    findings = []
    names = (
        "x_perm128_mixed",
        "x_perm128_bitmap",
        "uec_nscc_reps_perm128",
        "uec_nscc_obl_perm128",
        "x_perm128_ecmp1path",
    )
    if all(name in found for name in names):
        tails = [_median_of(found[name], "P99 us") for name in names]
        # mixed and bitmap are equal in htsim to 0.4 %; the others must come in order
        is_kept = max(tails[:2]) < tails[2] < tails[3] < tails[4] and abs(tails[0] / tails[1] - 1) < 0.05
        findings.append(
            Finding(
                id="order",
                title="Order of load balancers by P99",
                published="mixed ~ bitmap < REPS < oblivious << one path",
                setup="perm 128 x 2 MB",
                measures=tuple(
                    Measure.of(f"{found[name].title.rpartition(', ')[2]} us", tail)
                    for name, tail in zip(names, tails, strict=True)
                ),
                verdict=Verdict.MET if is_kept else Verdict.NOT_MET,
            )
        )
    pair = ("x_perm128_failed4_oblivious", "x_perm128_failed4_reps")
    if all(name in found for name in pair):
        tails = [_median_of(found[name], "P99 us") for name in pair]
        ratio = Measure.of(
            "P99 oblivious / REPS",
            tails[0] / tails[1],
            1.37 * (1 - BAND_RATIO),
            1.37 * (1 + BAND_RATIO),
            1.37,
        )
        findings.append(
            Finding(
                id="degraded",
                title="Tails with 4 links at 25 Gb/s",
                published="1.37",
                setup="perm 128 x 2 MB",
                measures=(ratio,),
                verdict=Verdict.MET if ratio.is_met else Verdict.NOT_MET,
            )
        )
    bound = INCAST_PACKETS * SLOT_US
    for name in ("uec_rccc_incast128", "ndp_incast128", "uec_nscc_reps_incast128"):
        if name in found:
            last = _median_of(found[name], "max us")
            is_credit = name != "uec_nscc_reps_incast128"
            high = (bound + INCAST_RTT_US) * (1 + BAND_CREDIT)
            measure = Measure.of("last finish us", last, bound, high if is_credit else None, bound)
            findings.append(
                Finding(
                    id=f"bound {name}",
                    title=f"Bound of the incast, {found[name].title.removeprefix('incast 32:1 x 1 MB, ')}",
                    published=f"not before {bound:,.0f} us"
                    + (", nor 2 % after bound and round trip" if is_credit else ""),
                    setup="7,840 packets over one link",
                    measures=(measure,),
                    verdict=Verdict.MET if measure.is_met else Verdict.NOT_MET,
                )
            )
    return findings


def _median_of(finding: Finding, name: str) -> float:
    return next(m.median for m in finding.measures if m.name == name)


def _cost(case: Case, effort: Effort) -> float:
    """How long a case takes, against the others: by the bytes of its matrix."""
    runs = min(effort.seeds if not effort.is_quick else 2, case.seeds_max)
    return runs * _MATRIX_MB.get(case.matrix, 1) * (2 if case.with_mrc else 1)


def compare_all(
    folder: Path,
    effort: Effort,
    *,
    only: Sequence[str] = (),
    told: Callable[[str], None] | None = None,
    keep: dict[str, NDArray[np.float64]] | None = None,
) -> list[Finding]:
    """Compares all cases, or those named.

    Args:
        folder: the data.
        effort: how many seeds; a quick one leaves out the long cases.
        only: ids.
        told: is told what comes next.
        keep: takes times for plots.
    """
    wanted = [case for case in CASES if (case.id in only if only else not (case.is_slow and effort.is_quick))]
    if told is not None and not only:
        told("closed forms")
    findings = [] if only else closed_forms(folder)
    for case in announced(
        wanted, told, lambda case: f"{_what(case)}, {case.label}", lambda case: _cost(case, effort)
    ):
        findings += compare_case(folder, case, effort, keep)
    return findings + _order({finding.id: finding for finding in findings})
