"""What the benchmarks share: how they compare, what they print, and endpoints in processes of their own."""

import os

# The threads of a linear algebra library wait by spinning, on cores that the measured processes need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from harness.measure import Check, Report, interleave, median
from harness.remote import Remote, RemoteEngine, RemoteError

__all__ = ["Check", "Remote", "RemoteEngine", "RemoteError", "Report", "interleave", "median"]
