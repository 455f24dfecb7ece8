"""One rank of the groups that test_torch_backend.py starts: ``torch_ranks.py CASE RANK SIZE FOLDER``.

Prints one JSON object per check: its name and the error, null if it passed.
"""

import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from farstep.collectives import CommunicatorAborted, CommunicatorError, CommunicatorTimeout
from farstep.train.gloo_threads import wait_until_settled

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
COUNTS = (1, 1000, 600_001)
"""Elements per rank: recursive doubling, and with 600,001 the ring with placed transfers."""


class Groups:
    """The same ranks as a Gloo group and as an mrc group."""

    def __init__(self, rank, size, folder):
        self.rank, self.size, self.folder = rank, size, folder
        store = dist.FileStore(str(folder / "store"), size)
        dist.init_process_group("mrc", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
        self.mrc = dist.group.WORLD
        self.gloo = dist.new_group(backend="gloo")

    def tensor(self, count, dtype, seed=0):
        generator = torch.Generator().manual_seed(100 * seed + self.rank)
        if dtype.is_floating_point:
            return torch.randn(count, generator=generator).to(dtype)
        return torch.randint(0, 60, (count,), generator=generator).to(dtype)

    def both(self, call):
        """Runs a call on either group; returns both results."""
        return call(self.gloo), call(self.mrc)


def assert_same(expected, result):
    for want, got in zip(expected, result, strict=True):
        assert torch.equal(want, got), (want, got)


# -- collectives against Gloo -------------------------------------------------------------------------------------


def check_all_reduce(groups):
    for dtype in DTYPES:
        for count in COUNTS:
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):

                def call(group, dtype=dtype, count=count, op=op):
                    data = groups.tensor(count, dtype)
                    dist.all_reduce(data, op, group=group)
                    return data

                gloo, mrc = groups.both(call)
                # Two operands commute, so that even floating-point sums must have Gloo's bits.
                assert torch.equal(gloo, mrc), (dtype, count, op)


def check_all_reduce_bitwise_and_bool(groups):
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):

        def call(group, op=op):
            data = groups.tensor(1000, torch.int32)
            dist.all_reduce(data, op, group=group)
            return data

        assert_same(*[[result] for result in groups.both(call)])
    flags = torch.tensor([groups.rank == 0, True, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.tolist() == [True, True, False]


def check_average_and_complex(groups):
    data = torch.full((1000,), float(groups.rank))
    dist.all_reduce(data, dist.ReduceOp.AVG)
    assert torch.equal(data, torch.full((1000,), (groups.size - 1) / 2))
    numbers = torch.complex(torch.ones(5), torch.full((5,), float(groups.rank)))
    dist.all_reduce(numbers)
    assert torch.equal(numbers, torch.full((5,), complex(groups.size, sum(range(groups.size)))))


def check_broadcast_and_reduce(groups):
    for dtype in (torch.float32, torch.int64, torch.complex64, torch.bool, torch.uint16):
        for count in COUNTS:
            for root in range(groups.size):
                base = groups.tensor(count, torch.int64).remainder(2)
                data = base.to(torch.uint8).to(dtype)
                dist.broadcast(data, root)
                other = torch.Generator().manual_seed(root)
                expected = torch.randint(0, 60, (count,), generator=other).remainder(2)
                assert torch.equal(
                    data.to(torch.int64) if dtype != torch.complex64 else data.real.long(), expected
                )
    for root in range(groups.size):
        gloo, mrc = (groups.tensor(5000, torch.int32) for _ in range(2))
        dist.reduce(gloo, root, group=groups.gloo)
        dist.reduce(mrc, root)
        if groups.rank == root:
            assert torch.equal(gloo, mrc)


def check_all_gather_in_every_form(groups):
    for count in COUNTS:

        def listed(group, count=count):
            outputs = [torch.empty(count) for _ in range(groups.size)]
            dist.all_gather(outputs, groups.tensor(count, torch.float32), group=group)
            return outputs

        def single(group, count=count):
            output = torch.empty(groups.size * count)
            dist.all_gather_into_tensor(output, groups.tensor(count, torch.float32), group=group)
            return [output]

        assert_same(*groups.both(listed))
        assert_same(*groups.both(single))
    objects = [None] * groups.size
    dist.all_gather_object(objects, {"rank": groups.rank})
    assert objects == [{"rank": rank} for rank in range(groups.size)]


def check_reduce_scatter_in_every_form(groups):
    for count in COUNTS:
        inputs = [groups.tensor(count, torch.float32, seed) for seed in range(groups.size)]
        expected = torch.cat(inputs)
        dist.all_reduce(expected, group=groups.gloo)
        own = slice(groups.rank * count, (groups.rank + 1) * count)
        output = torch.empty(count)
        dist.reduce_scatter(output, inputs)
        assert torch.equal(output, expected[own])
        output = torch.empty(count)
        dist.reduce_scatter_tensor(output, torch.cat(inputs))
        assert torch.equal(output, expected[own])


def check_gather_scatter_and_all_to_all(groups):
    for root in range(groups.size):

        def gathered(group, root=root):
            outputs = [torch.empty(1000) for _ in range(groups.size)] if groups.rank == root else None
            dist.gather(groups.tensor(1000, torch.float32), outputs, root, group=group)
            return outputs or []

        def scattered(group, root=root):
            inputs = [groups.tensor(70_000, torch.float32, s) for s in range(groups.size)]
            output = torch.empty(70_000)
            dist.scatter(output, inputs if groups.rank == root else None, root, group=group)
            return [output]

        assert_same(*groups.both(gathered))
        assert_same(*groups.both(scattered))
    outputs = [torch.empty(3, 2) for _ in range(groups.size)]
    dist.all_to_all(outputs, [torch.full((3, 2), 10.0 * groups.rank + q) for q in range(groups.size)])
    assert all((outputs[q] == 10 * q + groups.rank).all() for q in range(groups.size))
    rows = [q + 1 for q in range(groups.size)]
    data = torch.arange(sum(rows) * 2, dtype=torch.float32).reshape(-1, 2) + 100 * groups.rank
    output = torch.empty((groups.rank + 1) * groups.size, 2)
    dist.all_to_all_single(output, data, [groups.rank + 1] * groups.size, rows)
    start = sum(rows[: groups.rank])
    for q in range(groups.size):
        mine = torch.arange(2.0 * start, 2 * (start + groups.rank + 1)).reshape(-1, 2) + 100 * q
        assert torch.equal(output[q * (groups.rank + 1) : (q + 1) * (groups.rank + 1)], mine)
    whole = torch.empty(groups.size * 4)
    dist.all_to_all_single(whole, torch.full((groups.size * 4,), float(groups.rank)))
    assert torch.equal(whole, torch.arange(groups.size).repeat_interleave(4).float())


def check_coalesced_calls(groups):
    tensors = [torch.full((n,), float(groups.rank)) for n in (3, 70_000)]
    with dist.distributed_c10d._coalescing_manager(group=groups.mrc):
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert all((tensor == sum(range(groups.size))).all() for tensor in tensors)
    outputs = [torch.empty(n * groups.size) for n in (3, 70_000)]
    with dist.distributed_c10d._coalescing_manager(group=groups.mrc):
        for output, n in zip(outputs, (3, 70_000), strict=True):
            dist.all_gather_into_tensor(output, torch.full((n,), float(groups.rank)))
    for output, n in zip(outputs, (3, 70_000), strict=True):
        assert torch.equal(output, torch.arange(groups.size).repeat_interleave(n).float())


def check_send_and_recv(groups):
    other = (groups.rank + 1) % groups.size
    before = (groups.rank - 1) % groups.size
    if groups.rank == 0:
        dist.send(torch.arange(9.0), 1, tag=4)
    elif groups.rank == 1:
        received = torch.empty(9)
        dist.recv(received, 0, tag=4)
        assert torch.equal(received, torch.arange(9.0))
    incoming = torch.empty(100_000)
    operations = [
        dist.P2POp(dist.irecv, incoming, before),
        dist.P2POp(dist.isend, torch.full((100_000,), float(groups.rank)), other),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert (incoming == before).all()
    with pytest.raises(ValueError, match="name the source rank"):
        dist.recv(torch.empty(1))


def check_async_work_and_futures(groups):
    tensors = [torch.full((n,), 1.0) for n in (10, 100_000, 10)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    value = works[1].get_future().wait()
    assert value[0].data_ptr() == tensors[1].data_ptr()
    doubled = works[2].get_future().then(lambda future: future.value()[0] * 2)
    assert (doubled.wait() == 2 * groups.size).all()
    for work in works:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    assert all((tensor == groups.size).all() for tensor in tensors)


def check_tensors_that_are_not_contiguous(groups):
    base = torch.arange(24.0).reshape(4, 6) + groups.rank
    view = base[:, ::2]
    expected = view * groups.size + (sum(range(groups.size)) - groups.size * groups.rank)
    work = dist.all_reduce(view, async_op=True)
    work.wait()
    assert torch.equal(view, expected)
    assert torch.equal(base[:, 1::2], (torch.arange(24.0).reshape(4, 6) + groups.rank)[:, 1::2])
    outputs = [torch.zeros(6, 4).T for _ in range(groups.size)]
    dist.all_gather(outputs, torch.full((4, 6), float(groups.rank)))
    assert all((outputs[q] == q).all() for q in range(groups.size))


def check_misuse_is_named(groups):
    for call, words in (
        (lambda: dist.all_reduce(torch.zeros(3, dtype=torch.int32), dist.ReduceOp.AVG), "floating-point"),
        (lambda: dist.all_reduce(torch.zeros(3), dist.ReduceOp.BAND), "integer or bool"),
        (lambda: dist.all_reduce(torch.zeros(3, dtype=torch.uint16)), "torch.uint16 cannot be reduced"),
        (lambda: dist.all_reduce(torch.eye(3).to_sparse()), "to_dense"),
        (lambda: dist.new_group(backend="mrc", pg_options=3), "takes MrcOptions"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()
    dist.barrier()


def check_functional_collectives(groups):
    import torch.distributed._functional_collectives as functional

    data = torch.full((5,), float(groups.rank))
    total = functional.all_reduce(data, "sum", groups.mrc)
    assert (total + 0 == sum(range(groups.size))).all()
    whole = functional.all_gather_tensor(data, 0, groups.mrc)
    assert torch.equal(whole + 0, torch.arange(groups.size).repeat_interleave(5).float())
    part = functional.reduce_scatter_tensor(torch.ones(4 * groups.size), "sum", 0, groups.mrc)
    assert (part + 0 == groups.size).all()


# -- training -------------------------------------------------------------------------------------------------------


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))


def train(model, rank, steps=4):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        loss = model(torch.randn(16, 64, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def check_ddp_has_the_bits_of_gloo(groups):
    states = []
    for group in (groups.gloo, groups.mrc):
        model = DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.1)
        train(model, groups.rank)
        states.append([parameter.detach().clone() for parameter in model.parameters()])
    assert_same(*states)


def check_fsdp2_trains_as_ddp(groups):
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (groups.size,))
    sharded = make_model()
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    train(sharded, groups.rank)
    replicated = DistributedDataParallel(make_model(), process_group=groups.gloo)
    train(replicated, groups.rank)
    for shard, whole in zip(sharded.parameters(), replicated.parameters(), strict=True):
        torch.testing.assert_close(shard.full_tensor(), whole, rtol=1e-4, atol=1e-5)


def check_checkpoint_is_saved_and_loaded(groups):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (groups.size,))

    def make():
        model = make_model()
        fully_shard(model, mesh=mesh)
        return model

    trained = make()
    train(trained, groups.rank, steps=1)
    folder = str(groups.folder / "checkpoint")
    checkpoint.save(get_model_state_dict(trained), checkpoint_id=folder)
    fresh = make()
    state = get_model_state_dict(fresh)
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(fresh, state)
    for left, right in zip(trained.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(left.full_tensor(), right.full_tensor())


# -- groups of three --------------------------------------------------------------------------------------------------


def check_sub_groups(groups):
    pair = dist.new_group([0, 2], backend="mrc")
    single = dist.new_group([1], backend="mrc")
    if groups.rank in (0, 2):
        data = torch.full((70_000,), float(groups.rank + 1))
        dist.all_reduce(data, group=pair)
        assert (data == 4).all()
        received = torch.full((3,), float(groups.rank))
        dist.broadcast(received, 2, group=pair)
        assert (received == 2).all()
    else:
        data = torch.full((5,), 3.0)
        dist.all_reduce(data, group=single)
        assert (data == 3).all()
    dist.barrier()
    if groups.rank in (0, 2):
        dist.destroy_process_group(pair)


def check_three_ranks_agree_bit_for_bit(groups):
    for count in (5, 30_000, 300_001):
        data = groups.tensor(count, torch.float32)
        exact = groups.tensor(count, torch.float32).double()
        dist.all_reduce(data)
        dist.all_reduce(exact, group=groups.gloo)
        torch.testing.assert_close(data, exact.float(), rtol=1e-5, atol=1e-5)
        copies = [torch.empty_like(data) for _ in range(groups.size)]
        dist.all_gather(copies, data, group=groups.gloo)
        assert all(torch.equal(copies[0], copy) for copy in copies)


def check_two_dimensional_mesh_with_sites(groups):
    from farstep.collectives.torch_backend import MrcOptions

    options = MrcOptions(site="a" if groups.rank < 2 else "b")
    group = dist.new_group(backend="mrc", pg_options=options)
    data = groups.tensor(200_003, torch.int64)
    expected = data.clone()
    dist.all_reduce(data, group=group)
    dist.all_reduce(expected, group=groups.gloo)
    assert torch.equal(data, expected)


# -- failures -------------------------------------------------------------------------------------------------------


def check_a_killed_peer_is_noticed(groups):
    dist.barrier()
    data = torch.ones(16_000_000)
    if groups.rank == 1:
        dist.all_reduce(data, async_op=True)
        time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(CommunicatorError, match=r"all_reduce.*rank ?1"):
        all_reduce_for_long(groups, data)
    assert time.monotonic() - started < 8
    with pytest.raises(CommunicatorAborted, match="barrier"):
        dist.barrier()


def all_reduce_for_long(groups, data):
    for _ in range(100):
        groups.mrc.allreduce([data], make_options(seconds=4)).wait()


def make_options(seconds):
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=seconds)
    return options


def check_abort_unblocks_at_once(groups):
    group = dist.new_group(backend="mrc")
    dist.barrier(group)
    if groups.rank == 0:
        work = dist.all_reduce(torch.ones(100_000), group=group, async_op=True)
        future = work.get_future()
        time.sleep(0.3)
        started = time.monotonic()
        group.abort()
        with pytest.raises(CommunicatorAborted, match="all_reduce"):
            work.wait()
        assert time.monotonic() - started < 1
        with pytest.raises(Exception, match="abort"):
            future.wait()
        dist.barrier(groups.gloo)
    else:
        dist.barrier(groups.gloo)
        with pytest.raises(CommunicatorAborted, match="rank"):
            dist.all_reduce(torch.ones(100_000), group=group)
    dist.barrier()


def check_a_late_peer_times_out_with_its_name(groups):
    group = dist.new_group(backend="mrc")
    dist.barrier(group)
    if groups.rank == 0:
        work = group.allreduce([torch.ones(10)], make_options(seconds=0.3))
        with pytest.raises(CommunicatorTimeout, match="waiting for rank 1") as raised:
            work.wait()
        assert isinstance(raised.value, TimeoutError)
        assert isinstance(raised.value, RuntimeError)
    dist.barrier()


def check_ranks_that_disagree_about_the_type_are_told_so(groups):
    """The types have the same size, so that only their names tell them apart."""
    dtype = (torch.float32, torch.int32)[groups.rank]
    for name, call in (
        ("broadcast", lambda data, group: dist.broadcast(data, 0, group=group)),
        ("all_gather", lambda data, group: dist.all_gather([data, data.clone()], data + 1, group=group)),
        ("all_to_all", lambda data, group: dist.all_to_all_single(data, data + 1, group=group)),
        ("send", lambda data, group: (dist.send, dist.recv)[groups.rank](data, 1 - groups.rank, group=group)),
    ):
        group = dist.new_group(backend="mrc")
        data = torch.full((4,), groups.rank).to(dtype)
        error = None
        try:
            call(data, group)
            dist.barrier(group)  # the root of a broadcast need not wait for anybody
        except CommunicatorError as raised:
            error = raised
        dist.barrier(groups.gloo)
        assert error is not None, name


CASES = {
    "collectives": [
        check_all_reduce,
        check_all_reduce_bitwise_and_bool,
        check_average_and_complex,
        check_broadcast_and_reduce,
        check_all_gather_in_every_form,
        check_reduce_scatter_in_every_form,
        check_gather_scatter_and_all_to_all,
        check_coalesced_calls,
        check_send_and_recv,
        check_async_work_and_futures,
        check_tensors_that_are_not_contiguous,
        check_misuse_is_named,
        check_functional_collectives,
    ],
    "training": [
        check_ddp_has_the_bits_of_gloo,
        check_fsdp2_trains_as_ddp,
        check_checkpoint_is_saved_and_loaded,
    ],
    "three": [
        check_sub_groups,
        check_three_ranks_agree_bit_for_bit,
        check_two_dimensional_mesh_with_sites,
        check_send_and_recv,
        check_gather_scatter_and_all_to_all,
    ],
    "failures": [
        check_abort_unblocks_at_once,
        check_a_late_peer_times_out_with_its_name,
        check_ranks_that_disagree_about_the_type_are_told_so,
    ],
    "killed": [check_a_killed_peer_is_noticed],
}


def main():
    case, rank, size, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    np.random.seed(rank)
    groups = Groups(rank, size, folder)
    for check in CASES[case]:
        error = None
        try:
            check(groups)
        except Exception:
            error = traceback.format_exc()
        print(json.dumps({"check": check.__name__, "error": error}), flush=True)
        if error is not None:
            break  # the ranks may no longer agree on what comes next
    if case != "killed":
        dist.destroy_process_group()
    wait_until_settled()  # the threads of the gloo group, or the process may abort at its end


if __name__ == "__main__":
    main()
