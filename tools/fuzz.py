"""Looks for inputs that break the packet path: hours of it, or a minute.

Native targets (native/fuzz/*_fuzz.cpp) run under AddressSanitizer and UndefinedBehaviorSanitizer: guided by coverage
where clang's libFuzzer is there, otherwise with seeded changes of the corpus. The target `live` attacks endpoints on
real sockets. Inputs that reach new code are kept in build/fuzz; what breaks something lands there too, and is said.

Usage: python tools/fuzz.py [--seconds N] [--seed N] [--seeded] [TARGET...]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    path.stem.removesuffix("_fuzz"): path for path in sorted((ROOT / "native/fuzz").glob("*_fuzz.cpp"))
}
LIVE = "live"
CORPUS = ROOT / "native/fuzz/corpus"
CLANGS = ("clang++", *(f"clang++-{version}" for version in range(21, 13, -1)))
COMMON = ["-std=c++20", "-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-pthread"]
SEEDED_ITERATIONS = 2000
PROBE = """#include <cstddef>
#include <cstdint>
extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }
"""
LONGEST_INPUT_BYTES = 2048
MEMORY_MIB_MAX = 1024


def find_fuzzer(workshop: Path) -> str | None:
    """Returns a clang that has libFuzzer and the sanitizers, None if there is none."""
    probe = workshop / "probe.cpp"
    probe.write_text(PROBE)
    for name in CLANGS:
        path = shutil.which(name)
        flags = ["-fsanitize=fuzzer,address,undefined", str(probe), "-o", str(workshop / "probe")]
        if path and subprocess.run([path, *flags], capture_output=True).returncode == 0:
            return path
    return None


def build(target: str, fuzzer: str | None, workshop: Path) -> Path:
    """Compiles a target and returns the program."""
    program = workshop / target
    compiler = fuzzer or shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
    if compiler is None:
        raise SystemExit("error: no C++ compiler: neither g++ nor c++ is on PATH")
    sanitizers = "fuzzer,address,undefined" if fuzzer else "address,undefined"
    flags = [*COMMON, f"-fsanitize={sanitizers}", f"-I{ROOT / 'native/include'}"]
    flags += ["-DFARSTEP_LIBFUZZER"] if fuzzer else []
    done = subprocess.run(
        [compiler, *flags, str(SOURCES[target]), "-o", str(program)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"error: {SOURCES[target]} does not compile\n{done.stderr}")
    return program


def guided(target: str, program: Path, folder: Path, seconds: int, seed: int) -> bool:
    """Runs libFuzzer; returns whether nothing was found."""
    found = folder / "corpus"
    found.mkdir(parents=True, exist_ok=True)
    kept = CORPUS / target
    command = [str(program), str(found), *([str(kept)] if kept.is_dir() else [])]
    command += [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={LONGEST_INPUT_BYTES}",
        "-timeout=20",
    ]
    command += [f"-rss_limit_mb={MEMORY_MIB_MAX}", f"-artifact_prefix={folder}/", "-print_final_stats=1"]
    done = subprocess.run(command, capture_output=True, text=True)
    runs = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
    if done.returncode == 0:
        print(f"{target}: {runs[0] if runs else '?'} inputs, guided by coverage, nothing found")
        return True
    print(f"{target}: FOUND something\n{done.stderr[-6000:]}")
    print(f"reproduce: {program} {folder}/crash-... (the file named above)")
    return False


def seeded(target: str, program: Path, folder: Path, seconds: int, seed: int) -> bool:
    """Runs the target's own driver again and again; returns whether nothing was found."""
    folder.mkdir(parents=True, exist_ok=True)
    last = folder / "last"
    files = sorted(map(str, (CORPUS / target).glob("*"))) if (CORPUS / target).is_dir() else []
    environment = {**os.environ, "FARSTEP_FUZZ_LAST": str(last)}
    end_s, begun = time.monotonic() + seconds, seed
    while time.monotonic() < end_s:
        command = [str(program), str(seed), str(SEEDED_ITERATIONS), *files]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            print(f"{target}: FOUND something with seed {seed}\n{done.stdout}{done.stderr[-6000:]}")
            print(f"reproduce: {program} replay {last}")
            return False
        seed += 1
    print(f"{target}: {(seed - begun) * SEEDED_ITERATIONS} inputs from {seed - begun} seeds, nothing found")
    return True


def live(seconds: int, seed: int) -> bool:
    """Attacks endpoints on real sockets; returns whether nothing was found."""
    return (
        subprocess.run(
            [sys.executable, "-m", "tests.fuzz.live", str(seconds), str(seed)], cwd=ROOT
        ).returncode
        == 0
    )


def main() -> int:
    """Fuzzes the targets that are named, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(SOURCES)}, {LIVE} (default: all)"
    )
    parser.add_argument("--seconds", type=int, default=600, help="for each target (%(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument(
        "--seeded", action="store_true", help="without a coverage-guided fuzzer even if there is one"
    )
    options = parser.parse_args()
    targets = options.targets or [*SOURCES, LIVE]
    for target in targets:
        if target not in SOURCES and target != LIVE:
            parser.error(f"there is no target {target}; valid: {', '.join(SOURCES)}, {LIVE}")
    seed = options.seed if options.seed is not None else int(time.time())
    workshop = ROOT / "build/fuzz"
    workshop.mkdir(parents=True, exist_ok=True)
    fuzzer = None if options.seeded else find_fuzzer(workshop)
    if fuzzer is None and not options.seeded:
        print(
            "no clang with libFuzzer here (Debian: clang libclang-rt-14-dev): seeded changes instead",
            file=sys.stderr,
        )
    is_clean = True
    for target in targets:
        if target == LIVE:
            is_clean &= live(options.seconds, seed)
            continue
        program = build(target, fuzzer, workshop)
        run = guided if fuzzer else seeded
        is_clean &= run(target, program, workshop / f"{target}-found", options.seconds, seed)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
