"""What a flow costs that has not started: a row, and not the state of a connection."""

import subprocess
import sys

import pytest

FLOWS = 400_000
BYTES_MAX = 200

MEASURE = f"""
import numpy as np
from farstep.fabric.topology import fat_tree
from farstep.sim.packet import PacketSimulator, _task_columns
from farstep.sim.tasks import TaskBuilder


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


number = np.arange({FLOWS})
builder = TaskBuilder()
builder.flows(
    number % 128,
    (number + 1 + number // 128 % 127) % 128,
    1000,
    start_ns=10**9 + number,
    connection_key=number,
)
columns = _task_columns(builder.table())
engine = PacketSimulator(fat_tree(128))._engine(1)
before = resident_bytes()
engine.add_tasks(columns)
engine.run(1000, 0.0, 10**12)
print((resident_bytes() - before) / {FLOWS})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_an_idle_flow_with_a_connection_of_its_own_costs_a_row():
    done = subprocess.run([sys.executable, "-c", MEASURE], check=True, capture_output=True, text=True)
    assert 16 < float(done.stdout) <= BYTES_MAX
