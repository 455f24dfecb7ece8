"""One replica group under torchft: DDP on Gloo as its documentation has it.

Runs in the interpreter torchft is installed in. Arguments: number of the group, file for the record, size of the model,
samples per step, time limit of collectives in seconds.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from workload import Record, make_model, make_samples


def main() -> None:
    number, path, size, batch, timeout_s = (
        int(sys.argv[1]),
        sys.argv[2],
        sys.argv[3],
        int(sys.argv[4]),
        float(sys.argv[5]),
    )
    record = Record(path)
    model = make_model(size)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = make_samples()

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load(given: dict[str, Any]) -> None:
        model.load_state_dict(given["model"])
        inner.load_state_dict(given["optimizer"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=timeout_s)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        replica_id=f"group{number}_",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=30),
    )
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    record.write("ready")
    draw = torch.Generator().manual_seed(100 + number)
    while True:
        index = torch.randint(len(inputs), (batch,), generator=draw)
        optimizer.zero_grad()
        loss = functional.cross_entropy(wrapped(inputs[index]), targets[index])
        loss.backward()
        before = manager.current_step()
        optimizer.step()
        after = manager.current_step()
        record.write(
            "step", step=after, committed=after > before, groups=manager.num_participants(), loss=loss.item()
        )


main()
