"""What the benchmarks share: how they compare, what they print, and endpoints in processes of their own.

Nothing is imported here: a benchmark of the simulator's memory would carry the engine of the wire along.
"""

import os

# The threads of a linear algebra library wait by spinning, on cores that the measured processes need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
