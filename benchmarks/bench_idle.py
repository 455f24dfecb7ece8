"""Processor time of an endpoint's thread while nothing is sent."""

from __future__ import annotations

import sys
import time

from harness.measure import Report, arguments, parse
from harness.remote import Remote, RemoteEngine, join

SPAN_S = 3.0


def main() -> int:
    options = parse(arguments(__doc__ or "", rounds=5))
    report = Report(
        "an endpoint at idle",
        f"thread processor time over {SPAN_S:g} s after a transfer of 64 MiB; median of {options.rounds} spans",
        is_silent=options.json,
    )
    report.begin()
    for ports in (1, 8):
        arguments_ = (["127.0.0.1"] * ports, None, "", 64 << 20)
        with Remote(RemoteEngine, *arguments_) as a, Remote(RemoteEngine, *arguments_) as b:
            join(a, b)
            b.start("receive", 1)
            a.call("send", 64 << 20, 1, 1)
            b.result()
            time.sleep(0.5)
            percent = []
            for _ in range(options.rounds):
                before, begin_s = a.call("thread_cpu_ns"), time.monotonic()
                time.sleep(SPAN_S)
                used_ns = a.call("thread_cpu_ns") - before
                percent.append(100 * used_ns / 1e9 / (time.monotonic() - begin_s))
        found = report.add(f"{ports} port{'s' * (ports > 1)}, connected, idle", percent, "%")
        report.check(f"{ports} port{'s' * (ports > 1)}: thread at idle", found, 1.0, at_least=False, unit="%")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
