#!/bin/sh
# The two-site demo with torchrun as launcher. It starts one process per replica group; rank 0 also keeps the
# event log and the emulated paths. Arguments are handed on to `farstep train`.
#
#     examples/torchrun_demo.sh --steps 100
set -eu
exec torchrun --nproc-per-node 4 --module farstep train "$@"
