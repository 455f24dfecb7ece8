"""A replica group of several processes with FSDP2, which saves or loads: run as a program, once per rank.

Arguments: save, load, write, resume or fail; folder, rank, number of ranks, file through which they meet, and
folder for the outcome.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from farstep.train.checkpoint import Checkpoint
from farstep.train.elastic.options import Synchronous
from farstep.train.elastic.state import ReplicaState
from tests.unit.train.checkpoint.states import FailingFiles

STEPS = 3


def model_and_optimizer(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    # Widths that neither two nor four ranks divide.
    model = torch.nn.Sequential(
        torch.nn.Linear(9, 13), torch.nn.Tanh(), torch.nn.Linear(13, 5), torch.nn.LayerNorm(5)
    )
    if dist.get_world_size() > 1:
        fully_shard(model[0])
        fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        model(torch.randn(4, 9, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {
        "model": of_model,
        "optimizer": of_optimizer,
        "ledger": {"step": step},
        "plain": torch.arange(3) * step,
    }


def whole(state: object) -> object:
    """The state with every distributed tensor put together, as this rank sees it."""
    if isinstance(state, torch.Tensor):
        return (state.full_tensor() if isinstance(state, DTensor) else state).clone()
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    return state


def main() -> None:
    verb, folder, rank, ranks, meeting, outcome = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(ranks))
    torch.set_num_threads(1)
    model, optimizer = model_and_optimizer(seed=1 if verb == "save" else 2)
    if verb == "fail":
        fail(Path(folder), int(rank))
        return
    with Checkpoint(Path(folder), every_steps=STEPS) as checkpoint:
        if verb in ("write", "resume"):
            expected = as_a_trainer_does(checkpoint, model, optimizer, is_new=verb == "write")
        elif verb == "save":
            for step in range(1, STEPS + 1):
                train(model, optimizer, 1)
                state = state_of(model, optimizer, step)
                expected = whole(state)
                handle = checkpoint.save(step, state, group=dist.group.WORLD, info={"ranks": ranks})
                train(model, optimizer, 1)  # goes on at once
                assert handle.wait(60)
                assert handle.error is None, handle.error
        else:
            info = checkpoint.newest(group=dist.group.WORLD)
            state = checkpoint.load(info, state_of(model, optimizer, 0), group=dist.group.WORLD)
            set_state_dict(
                model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
            )
            expected = whole(state_of(model, optimizer, state["ledger"]["step"]))
    torch.save(expected, Path(outcome) / f"{verb}-{ranks}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def as_a_trainer_does(
    checkpoint: Checkpoint, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, is_new: bool
) -> dict:
    """Saves when it is due, or resumes with an optimizer that has made no step; returns the state."""
    state = ReplicaState(model, optimizer, policy=Synchronous())
    checkpoint.attach(
        ranks=dist.get_world_size(), on_event=lambda kind, fields: None, info={"ranks": "write"}
    )
    assert checkpoint.load_newest(state.resuming()) is not is_new
    if is_new:
        for step in range(1, STEPS + 1):
            train(model, optimizer, 1)
            state.committed = step
            checkpoint.at_boundary(step, state, is_writer=True)
    assert state.committed == STEPS
    captured = state.capture()
    del captured["settings"]  # which name this rank's part of the gradient
    return whole(captured)


def fail(folder: Path, rank: int) -> None:
    """The disk of one rank after the other fails: nobody is stopped, and the earlier checkpoint stays."""
    model, optimizer = model_and_optimizer(seed=1)
    train(model, optimizer, 1)
    for failing_rank in range(dist.get_world_size()):
        for fails_at in range(1, 10):
            files = FailingFiles(fails_at if rank == failing_rank else -1)
            with Checkpoint(folder, files=files) as checkpoint:
                handle = checkpoint.save(
                    100 + fails_at, state_of(model, optimizer, 7), group=dist.group.WORLD
                )
                assert handle.wait(60)
                if rank == failing_rank == 0 or (rank == failing_rank and files.count >= fails_at):
                    assert "No space left" in str(handle.error) + str(
                        getattr(handle.error, "failures", "")
                    ), fails_at
                dist.barrier()
                if fails_at < 3:  # both write at least a file each
                    assert checkpoint.newest(group=dist.group.WORLD).step == 3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # Not through the end of the interpreter: a thread of gloo that frees a tensor meanwhile aborts the process
    # (pytorch/pytorch issues 179291 and 190489).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
