"""What the benchmarks share: how they compare, what they print, and endpoints in processes of their own."""

from harness.measure import Check, Report, interleave, median
from harness.remote import Remote, RemoteEngine, RemoteError

__all__ = ["Check", "Remote", "RemoteEngine", "RemoteError", "Report", "interleave", "median"]
