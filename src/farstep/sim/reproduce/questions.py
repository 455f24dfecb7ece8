"""What the MRC papers leave open, (a) to (j): experiments, plots, and what they say."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farstep.sim.reproduce.progress import announced
from farstep.sim.reproduce.question_runs import RUNS
from farstep.sim.reproduce.record import Effort, Finding, Verdict, plain_number

__all__ = ["HEAD", "QUESTIONS", "Question", "answer", "page"]

HEAD = """# Questions the MRC papers leave open

Each section is one experiment of `farstep reproduce questions`, at packet level, with the shipped MRC core and
the cut-down clusters described in [the comparison with the papers](mrc.md): 600 ns a switch, 100 ns a cable,
the host latency of its row Q9. Figures are medians over seeds with the 5th and 95th percentile; all of them are
in the tables. They hold for these networks and loads; where a limit is known, the text says so.
"""

Figure = Callable[[str], str]
"""A figure by its name, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question and what is said of its figures.

    Attributes:
        title: the question.
        setup: what was simulated.
        text: the findings, with the figures put in by their names.
        plots: names of its plots.
    """

    title: str
    setup: str
    text: Callable[[Figure], str]
    plots: tuple[str, ...]


def _a(f: Figure) -> str:
    mrc, noqa, ecn = "no ECN, QA (MRC)", "no ECN, no QA", "ECN, QA"
    return (
        "All senders start with a full window, so that at 7:1 half of what is sent is trimmed whatever the"
        " switch does:"
        f" {f(f'7:1, {mrc}: packets trimmed %')} % without marks at the last hop,"
        f" {f(f'7:1, {ecn}: packets trimmed %')} %"
        " with them; quick adapt changes nothing there, as its gate (an eighth of the largest window)"
        " suggests. It begins to"
        f" matter beyond 9:1: at 64:1 trims are {f(f'64:1, {noqa}: packets trimmed %')} % without marks and"
        " without quick"
        f" adapt, {f(f'64:1, {mrc}: packets trimmed %')} % with it, {f(f'64:1, {ecn}: packets trimmed %')} %"
        " with marks."
        " The last sender ends within"
        f" {f(f'64:1, {mrc}: last finish over bound')} times the bound with MRC's choice,"
        f" {f(f'64:1, {noqa}: last finish over bound')} without quick adapt,"
        f" {f(f'64:1, {ecn}: last finish over bound')} with marks. So leaving out ECN at the last hop costs header"
        " bandwidth, not time, as long as quick adapt is on."
    )


def _b(f: Figure) -> str:
    return (
        "The EVs of a QP lead over different T1s while there are enough of them, so that the share of QPs a"
        " dead T1 touches is"
        f" EVs / uplinks rather than 1 - (1 - 1/32)^EVs: {f('8 EVs a plane: QPs touched %')} % with 8 EVs of"
        " 32 uplinks,"
        f" {f('16 EVs a plane: QPs touched %')} % with 16, {f('32 EVs a plane: QPs touched %')} % with 32 (a"
        " message of"
        " 2 MB has too few packets to meet every EV). What is lost in all hardly depends on it"
        f" ({f('1 EVs a plane: packets lost in all')} packets with 1 EV,"
        f" {f('32 EVs a plane: packets lost in all')} with"
        " 32): fewer QPs lose more each. For balance 8 EVs a plane are enough here: P99 of a healthy permutation is"
        f" {f('1 EVs a plane: P99 us, healthy')} us with 1, {f('4 EVs a plane: P99 us, healthy')} with 4,"
        f" {f('8 EVs a plane: P99 us, healthy')} with 8 and does not fall further."
    )


def _c(f: Figure) -> str:
    name = "flap every 5,000 us, 0 EVs in reserve"
    return (
        "Hardly at all, which is the finding: an EV that lost packets must answer five probes in a row before"
        " it is used again,"
        " so one that flaps faster than five probes take never comes back and loses nothing more. With EVs in"
        " reserve it is"
        " replaced and stays out in any case. Without any in reserve and with a flap every 5 ms, probes every"
        " 30 us lose"
        f" {f(f'{name}, probes every 30 us: packets lost per ms')} packets per ms, probes every 1 ms"
        f" {f(f'{name}, probes every 1,000 us: packets lost per ms')}; goodput stays at"
        f" {f(f'{name}, probes every 30 us: goodput of line')} of line, for 15 other paths of the plane carry"
        " the load."
        " Slow probing costs capacity only where many paths of a plane flap at once, which this experiment"
        " does not have."
    )


def _d(f: Figure) -> str:
    goodput, paths = (
        "{} of 16 uplinks of plane 0 gone: goodput of line",
        "{} of 16 uplinks of plane 0 gone: paths of plane 0 left",
    )
    return (
        "With equal bytes on every plane, the worst plane holds all of them at its own share of paths; with"
        " bytes after"
        " capacity, only its loss would be missed. MRC is near the first while little is gone: with 1 uplink"
        " of 16 gone in"
        f" every rack two racks have {f(paths.format(1))} of the plane's paths between them and"
        f" {f(goodput.format(1))} of line ({f(goodput.format(0))} with all), with 4 gone {f(paths.format(4))}"
        " of the paths"
        f" and {f(goodput.format(4))} of line. With half of them gone ({f(paths.format(8))} of the paths)"
        f" {f(goodput.format(8))} is left, well above the plane's share: it still gets a quarter of all bytes, but much"
        " of that is trimmed there and goes again over the other planes. With 12 gone it gets a fifth, and"
        f" {f(goodput.format(12))} of line is left."
        " So the paper's rule holds, that planes must"
        " be kept equal:"
        " one uplink of 64 in all costs a tenth of a fabric that is fully loaded. Dead cables of two racks"
        " also add up, as"
        " a path needs a T1 that both still reach."
    )


def _e(f: Figure) -> str:
    seen = "NIC sees it, remapping {}: the step it hits is longer by us"
    silent = "nobody tells (silent), remapping 0 us: the step it hits is longer by us"
    return (
        "Less than the time of remapping suggests. If the NIC and its peers leave the plane at once, the step"
        " in which the port"
        f" fails is longer by {f(seen.format('0 us'))} us, if after 0.1 ms by {f(seen.format('100 us'))} us,"
        " if after 10 ms by"
        f" {f(seen.format('10,000 us'))} us: in the meantime every EV of the dead port is given up by its own"
        " losses, which"
        f" takes as long as for a port of which nobody is told ({f(silent)} us). So seconds of remapping need"
        " not stop a job;"
        " that they did on the NICs of the paper means that something else waited. The steps after it are longer by"
        f" {f('NIC sees it, remapping 0 us: the last step is longer by %')} %, for this ring of short messages"
        " is bound by"
        " latency more than by the quarter of bandwidth that one NIC lost."
    )


def _f(f: Figure) -> str:
    dead, slow = "one T1 dies silently at 30 us: P99 us", "one T1 at a quarter of its rate: P99 us"
    return (
        f"In a healthy fabric all ways to spray are alike (P99 {f('MRC, healthy: P99 us')} us with MRC,"
        f" {f('mixed, healthy: P99 us')} with REPS and bitmap mixed, {f('oblivious, healthy: P99 us')}"
        " oblivious), and all far"
        f" from one path by hash ({f('one path (ECMP), healthy: P99 us')}). They differ when something is"
        " wrong: with a T1 at a"
        f" quarter of its rate {f(f'MRC, {slow}')} us with MRC, {f(f'adaptive routing, {slow}')} where"
        " switches choose,"
        f" {f(f'bitmap, {slow}')} with bitmap, {f(f'REPS, {slow}')} with REPS, {f(f'oblivious, {slow}')}"
        " oblivious; with a T1"
        f" that dies silently {f(f'MRC, {dead}')} with MRC, {f(f'REPS, {dead}')} with REPS and"
        f" {f(f'oblivious, {dead}')}"
        " oblivious, which waits for its timeout again and again. Fixed EVs that are judged one by one need"
        " one loss each;"
        " others need a timeout to notice a path that takes packets and gives nothing back. Adaptive routing"
        " is left out"
        " there: it is published to leave a silent plane after 3 ms, longer than these flows last."
    )


def _g(f: Figure) -> str:
    return (
        f"It hardly matters to the sender: P99 of neighbours that send 8 MB both ways is {f('4 KiB: P99 us')}"
        " us with 4 KiB,"
        f" {f('16 KiB: P99 us')} with 16 KiB, {f('64 KiB: P99 us')} with 64 KiB, and an incast of 16 trims"
        f" {f('4 KiB: incast 16:1, packets trimmed %')}, {f('16 KiB: incast 16:1, packets trimmed %')} and"
        f" {f('64 KiB: incast 16:1, packets trimmed %')} %. What changes is what answers take of the way back:"
        f" {f('4 KiB: control bytes of data bytes %')} % of the data's bytes with 4 KiB,"
        f" {f('16 KiB: control bytes of data bytes %')} % with 16 KiB,"
        f" {f('64 KiB: control bytes of data bytes %')} % with 64"
        " KiB, which is just what the slower times show, as both directions are full. 16 KiB, UET's value, is"
        " a good one;"
        " more gains half a per cent."
    )


def _h(f: Figure) -> str:
    return (
        "A QP cannot have more packets in flight than the receiver keeps apart, so goodput is MPR / (packets"
        " of one round"
        f" trip): {f('MPR 128 packets: goodput of line')} of line with 128 packets,"
        f" {f('MPR 256 packets: goodput of line')} with 256, all with 384, where a round trip holds 335. With"
        " losses it must"
        " hold what is sent until a hole is closed: at 0.1 % loss 384 packets give"
        f" {f('MPR 384 packets, 0.1 % loss: goodput of line')}, 768"
        f" {f('MPR 768 packets, 0.1 % loss: goodput of line')}, 1,024"
        f" {f('MPR 1024 packets, 0.1 % loss: goodput of line')} of line: three round trips."
    )


def _i(f: Figure) -> str:
    return (
        "With MRC trimming decides less than one would think, because losses are noticed after little more"
        " than a round trip on"
        " paths that go on delivering: the last of 16 senders ends at"
        f" {f('16:1, trim at 1 BDP: last finish over bound')} times the bound with trimming,"
        f" {f('16:1, drop at 1 BDP: last finish over bound')} with plain drops at the same queue,"
        f" {f('16:1, drop at 5 BDP: last finish over bound')} with drops at five times it; of 64,"
        f" {f('64:1, trim at 1 BDP: last finish over bound')}, {f('64:1, drop at 1 BDP: last finish over bound')} and"
        f" {f('64:1, drop at 5 BDP: last finish over bound')}. What is sent again is"
        f" {f('64:1, trim at 1 BDP: sent again %')}, {f('64:1, drop at 1 BDP: sent again %')} and"
        f" {f('64:1, drop at 5 BDP: sent again %')} % at 64:1. Small incasts gain from a deep queue, which"
        " takes them without"
        f" any loss ({f('4:1, drop at 5 BDP: sent again %')} % at 4:1 against"
        f" {f('4:1, trim at 1 BDP: sent again %')} %), large"
        " ones lose, for the delay of the full queue comes into every round trip. A permutation is the same in"
        " all three. The"
        " messages are of 1 MB; a receiver that is loaded for longer is row Q29 of the other page."
    )


def _j(f: Figure) -> str:
    return (
        f"The median does not move ({f('0 %: P50 us')} us from message to message without loss,"
        f" {f('20 %: P50 us')} with 20 % of"
        f" answers lost): a later answer says what a lost one said. The tail does: P99 is {f('0.1 %: P99 us')}"
        " us at 0.1 %,"
        f" {f('1 %: P99 us')} at 1 %, {f('5 %: P99 us')} at 5 % and {f('20 %: P99 us')} at 20 %, when the last"
        " answer of a message"
        f" is the one lost. Next to nothing is sent twice for it ({f('20 %: sent again needlessly, of 1,000')} of"
        " 1,000 packets at"
        " 20 %). That agrees with the paper, which calls the effect mild; it is so only while other answers"
        " come. On a"
        " plane with most of its ways back dead it is not, as row Q30 of the other page tells."
    )


QUESTIONS: Mapping[str, Question] = {
    "a": Question(
        title="ECN at the last hop, and quick adapt, under incast",
        setup="4 to 64 NICs of 400G send 1 MB each to one, one plane, 8 racks over 16 T1s.",
        text=_a,
        plots=("question-a-trims", "question-a-finish"),
    ),
    "b": Question(
        title="How many entropy values",
        setup="64 NICs of 4 x 200G, 32 uplinks, 4 QPs a NIC with 2 MB each; once healthy, once with a T1 that"
        " dies silently.",
        text=_b,
        plots=("question-b-touched", "question-b-tail"),
    ),
    "c": Question(
        title="Cadence of probes against flapping links",
        setup="One QP at 8 x 100G, 16 uplinks a plane of which one flaps silently, half of the time down.",
        text=_c,
        plots=("question-c-losses",),
    ),
    "d": Question(
        title="Planes that are not equal",
        setup="64 NICs of 4 x 200G, 16 uplinks a plane, all send across racks at full rate; uplinks of plane 0"
        " are dead in"
        " every rack.",
        text=_d,
        plots=("question-d-goodput",),
    ),
    "e": Question(
        title="Time of remapping after a NIC port fails",
        setup="Ring all-reduce of 32 MB over 16 NICs of 4 x 200G; a port of one fails in the second step.",
        text=_e,
        plots=("question-e-step",),
    ),
    "f": Question(
        title="EVs that are judged, REPS, bitmap, oblivious, adaptive routing",
        setup="Permutation of 64 x 4 MB at 400G, 16 T1s: healthy, one T1 slow, one T1 dead. UET's balancers"
        " with NSCC.",
        text=_f,
        plots=("question-f-dead",),
    ),
    "g": Question(
        title="SACK threshold",
        setup="32 NICs of 8 x 100G send 8 MB to the next rack, both ways; and an incast of 16.",
        text=_g,
        plots=("question-g-tail", "question-g-control"),
    ),
    "h": Question(
        title="An MPR that is too small",
        setup="One QP at 800G over a round trip of 14 us; without loss, and with 0.1 % at the receiver's ports.",
        text=_h,
        plots=("question-h-goodput",),
    ),
    "i": Question(
        title="Trimming or dropping",
        setup="Incasts as in (a), and a permutation of 128 x 1 MB.",
        text=_i,
        plots=("question-i-incast",),
    ),
    "j": Question(
        title="Loss on the way back",
        setup="16 pairs at 8 x 100G send 40 messages of 1 MB, one after the other; only what receivers send is lost.",
        text=_j,
        plots=("question-j-times",),
    ),
}
"""By letter."""


def answer(
    letters: Sequence[str],
    effort: Effort,
    *,
    folder: Path | None = None,
    told: Callable[[str], None] | None = None,
) -> list[Finding]:
    """Runs experiments in turn.

    Args:
        letters: `a` to `j`.
        effort: how many seeds.
        folder: where plots are written; None: nowhere.
        told: is told what comes next.
    """
    findings = []
    for letter in announced(letters, told, lambda letter: f"({letter}) {QUESTIONS[letter].title}"):
        question = QUESTIONS[letter]
        found = RUNS[letter](effort)
        if folder is not None:
            for name, plot in found.plots.items():
                plot.write(folder / f"{name}.svg")
        findings.append(
            Finding(
                id=letter,
                title=question.title,
                published="",
                setup=question.setup,
                measures=found.measures,
                verdict=Verdict.SHOWN,
            )
        )
    return findings


def page(findings: Sequence[Finding]) -> str:
    """The page, with a section for each question."""
    parts = [HEAD.rstrip(), ""]
    for finding in findings:
        question = QUESTIONS[finding.id]
        figures = {measure.name: plain_number(measure.median) for measure in finding.measures}
        parts += [
            f"## ({finding.id}) {question.title}",
            "",
            question.setup,
            "",
            textwrap.fill(question.text(figures.__getitem__), 118),
            "",
        ]
        parts += [line for name in question.plots for line in (f"![{question.title}]({name}.svg)", "")]
        parts += ["| Figure | Median (P5 to P95) |", "|---|---|"]
        parts += [f"| {measure.name} | {measure.text} |" for measure in finding.measures]
        parts.append("")
    return "\n".join(parts)
