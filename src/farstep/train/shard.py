"""One seat's part of every batch, loaded by what a torch `DataLoader` is made of.

Invariant: the batch handed out holds exactly the samples that the ledger deals to this seat for the
next step that is not committed. What is loaded ahead of time is a guess, and dropped when it was wrong.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import parent_process
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.distributed import DistributedSampler

from farstep.fabric.errors import quoted
from farstep.fabric.expected import expect_count
from farstep.train.arguments import expect_counts, expect_flag, expect_seed
from farstep.train.errors import ConfigError
from farstep.train.ledger import BatchRule, Deal, Range, SampleLedger, cut_evenly
from farstep.train.permutation import mix, mix_many
from farstep.train.place import Place

__all__ = ["Shard"]

Token = tuple[int, int]
"""A sample to load: seed of its random draws, number in the data set."""

Tokens = list[Token]

_LOADER_SETTINGS = ("num_workers", "timeout", "multiprocessing_context", "prefetch_factor", "pin_memory")
_PR_SET_PDEATHSIG = 1


class Portion(NamedTuple):
    """What one process computes of a step."""

    step: int
    epoch: int
    ranges: tuple[Range, ...]
    """Positions in the epoch's order, at least one."""
    num_samples: int
    """Samples that count; 0 if the one sample of `ranges` is a stand-in."""


class Shard:
    """Iterates over this seat's part of every batch.

    Each iteration hands out the batch of the next step that is *not committed*: when a step failed
    and the seats changed, the same samples are dealt again, to whoever is there. A loop covers what
    is left of the current epoch; with `epochs` or `steps` it goes on until the run as a whole has
    done so many, also after it was resumed.

    A seat without samples (a last batch smaller than the number of seats) still gets a batch of one
    stand-in sample, so that its model runs as everywhere else; `num_samples` and `weight` are 0 then.

    Random draws while a sample is loaded (of `torch`, `random` and `numpy.random`) are seeded by the
    run, the epoch and the sample: whoever loads it gets the same bits. A data set that fetches whole
    batches (`__getitems__`) is seeded once per batch.

    Args:
        source: a `DataLoader`, whose data set, collate function, workers, pinning and last-batch
            rule are taken over, or a data set with `__len__` and `__getitem__`. Iterable data sets
            have no numbered samples and cannot be dealt.
        place: asked before every batch; may block until there is a seat. None ends the iteration.
        batch_size: samples per step, of the whole run with `batch="global"` and of each seat with
            `batch="per_group"`; the loader's by default.
        batch: whether the batch of the run or that of a seat is constant when members change.
        seed: of the order and of the random draws.
        shuffle: random order; by default as the loader's sampler says, True for a data set.
        drop_last: leave out the last, smaller batch of an epoch; the loader's by default.
        collate_fn: makes a batch of a list of samples; the loader's by default.
        num_workers: processes that load ahead; the loader's by default.
        epochs: end when the run has done so many.
        steps: end when the run has committed so many.
        inner: whether the processes of a seat split its part, or all get the whole of it.
        on_error: is told of an exception that ends the iteration, before it is raised.

    Attributes:
        ended_at: steps that were committed when the last loop came to its end by itself; None if it did not.

    Raises:
        ConfigError: the source cannot be dealt, or a size is out of range; the message names what is valid.
    """

    def __init__(
        self,
        source: DataLoader[Any] | Dataset[Any],
        *,
        place: Callable[[], Place | None],
        batch_size: int | None = None,
        batch: BatchRule = "global",
        seed: int = 0,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        inner: Literal["split", "same"] = "split",
        on_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        loader = source if isinstance(source, DataLoader) else None
        dataset = source.dataset if isinstance(source, DataLoader) else source
        _check_dataset(dataset)
        if loader is not None:
            shuffle = _shuffles(loader) if shuffle is None else shuffle
            batch_size = loader.batch_size if batch_size is None else batch_size
            drop_last = loader.drop_last if drop_last is None else drop_last
            collate_fn = collate_fn or loader.collate_fn
        for name, function in (("place", place), ("on_error", on_error)):
            if not callable(function) and not (name == "on_error" and function is None):
                raise ConfigError(f"{name} = {quoted(function)}: must be a function")
        expect_count("batch_size", batch_size, least=1)
        assert batch_size is not None
        if inner not in ("split", "same"):
            raise ConfigError(f'inner is {quoted(inner)}; valid: "split", "same"')
        expect_counts(epochs=epochs, steps=steps, num_workers=num_workers)
        expect_seed(seed)
        expect_flag("shuffle", shuffle)
        expect_flag("drop_last", drop_last)
        if collate_fn is not None and not callable(collate_fn):
            raise ConfigError(
                f"collate_fn = {quoted(collate_fn)}: must be a function of a list of samples, or None"
            )
        self.ledger = SampleLedger(
            len(dataset),  # type: ignore[arg-type]
            batch_size=batch_size,
            seed=seed,
            batch=batch,
            shuffle=True if shuffle is None else shuffle,
            drop_last=bool(drop_last),
        )
        self.epochs = epochs
        self.steps = steps
        self.ended_at: int | None = None
        self._ask_place = place
        self._on_error = on_error
        self._is_split = inner == "split"
        self._samples = _Samples(dataset)
        self._collate = collate_fn or default_collate
        settings = {name: getattr(loader, name) for name in _LOADER_SETTINGS} if loader is not None else {}
        if num_workers is not None:
            settings["num_workers"] = num_workers
        self._pins = bool(settings.get("pin_memory"))
        init = loader.worker_init_fn if loader is not None else None
        self._loads_here = init is None
        self._ahead = (
            _Ahead(self, self._samples, self._collate, settings, init)
            if settings.get("num_workers")
            else None
        )
        self._deal: Deal | None = None
        self._place: Place | None = None
        self._portion: Portion | None = None

    # -- what was handed out --------------------------------------------------------------------

    @property
    def deal(self) -> Deal:
        """How the batch handed out last is dealt among the seats.

        Raises:
            RuntimeError: no batch was handed out yet.
        """
        if self._deal is None:
            raise RuntimeError("no batch was handed out yet: iterate over the shard first")
        return self._deal

    @property
    def place(self) -> Place:
        """Place for which the last batch was dealt; errors as `deal`."""
        if self._place is None:
            raise RuntimeError("no batch was handed out yet: iterate over the shard first")
        return self._place

    @property
    def weight(self) -> float:
        """Part of the step's samples that this seat has, 0..1."""
        return self.deal.weight(self.place.seat)

    @property
    def num_samples(self) -> int:
        """Samples of this process that count; 0 for a stand-in."""
        return 0 if self._portion is None else self._portion.num_samples

    @property
    def inner_scale(self) -> float:
        """Factor of this process's loss that makes a plain mean over the seat's processes right."""
        in_seat = self.deal.counts[self.place.seat]
        if not self._is_split or in_seat == 0:
            return 1.0
        return self.num_samples * self.place.num_inner / in_seat

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch.

        Raises:
            TypeError: the batch is that of a seat, so the number depends on the members.
        """
        ledger = self.ledger
        if ledger.batch != "global":
            raise TypeError('a shard with batch="per_group" has no length: it depends on the members')
        if ledger.drop_last:
            return max(1, ledger.num_samples // ledger.batch_size)
        return -(-ledger.num_samples // ledger.batch_size)

    # -- handing out ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yields batches until the epoch, the run or the wanted number of steps ends."""
        epoch = None
        self.ended_at = None
        while True:
            try:
                place = self._ask_place()
                if place is None:
                    return
                deal = self._next_deal(place, epoch)
                if deal is None:
                    self.ended_at = self.ledger.step
                    return
                epoch = deal.epoch if epoch is None else epoch
                batch = self._hand_out(deal, place)
            except BaseException as error:
                if self._on_error is not None:
                    self._on_error(error)
                raise
            yield batch

    def _next_deal(self, place: Place, epoch: int | None) -> Deal | None:
        """Deals the next uncommitted step; None if it is beyond what the loop covers."""
        if self.steps is not None and self.ledger.step >= self.steps:
            return None
        deal = self.ledger.deal(place.num_seats, place.shares)
        if self.epochs is not None:
            is_over = deal.epoch >= self.epochs
        else:
            is_over = self.steps is None and epoch is not None and deal.epoch != epoch
        return None if is_over else deal

    def redeal(self) -> Any:
        """Returns the batch of the next uncommitted step for the place held now.

        Raises:
            RuntimeError: there is no place: the run is over.
        """
        place = self._ask_place()
        if place is None:
            raise RuntimeError("there is no seat to deal to: the run is over")
        return self._hand_out(self.ledger.deal(place.num_seats, place.shares), place)

    def _hand_out(self, deal: Deal, place: Place) -> Any:
        portion = self.portion(deal, place)
        self._deal, self._place, self._portion = deal, place, portion
        if self._ahead is None:
            return self._load(portion)
        batch = self._ahead.take(portion, may_miss=self._loads_here)
        return self._load(portion) if batch is _Ahead.MISSING else batch

    def portion(self, deal: Deal, place: Place) -> Portion:
        """Returns what the process at a place computes of a deal."""
        parts = deal.ranges[place.seat]
        if self._is_split:
            parts = cut_evenly(parts, place.num_inner)[place.inner_rank]
        count = sum(len(part) for part in parts)
        if count == 0:
            first = next(part for ranges in deal.ranges for part in ranges)
            parts = (Range(first.start, first.start + 1),)
        return Portion(deal.step, deal.epoch, parts, count)

    def tokens(self, portion: Portion) -> Tokens:
        """Returns the samples of a portion with the seeds of their random draws."""
        positions = np.concatenate([np.arange(*part, dtype=np.int64) for part in portion.ranges])
        indices = self.ledger.at(portion.epoch, positions)
        seeds = mix_many((self.ledger.seed, portion.epoch), indices)
        return list(zip(seeds.tolist(), indices.tolist(), strict=True))

    def _load(self, portion: Portion) -> Any:
        with _RandomState(self._samples.draws):
            batch = self._collate(self._samples.__getitems__(self.tokens(portion)))
        if self._pins and torch.accelerator.is_available():
            return pin_memory(batch)  # type: ignore[no-untyped-call]
        return batch

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the data: the state of the ledger, small and JSON."""
        return self.ledger.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on at a position in the data.

        Raises:
            ConfigError: the state is of another data set, seed or order.
        """
        self.ledger.load_state(state)

    def close(self) -> None:
        """Ends the worker processes; the shard may be used again and starts new ones."""
        if self._ahead is not None:
            self._ahead.close()


class _Ahead:
    """Batches that worker processes load ahead of time, in the order in which they were guessed.

    The workers are those of a torch `DataLoader` whose batch sampler is this object: it never ends,
    and guesses that the steps to come commit with the seats of now.
    """

    MISSING = object()

    def __init__(
        self,
        shard: Shard,
        samples: _Samples,
        collate: Callable[[list[Any]], Any],
        settings: Mapping[str, Any],
        init: Callable[[int], None] | None,
    ) -> None:
        self._shard = shard
        self._loader_settings: dict[str, Any] = {
            **settings,
            "dataset": samples,
            "collate_fn": collate,
            "worker_init_fn": _WorkerStart(init),
            # The workers' base seed would otherwise be drawn from the generator of the training.
            "generator": torch.Generator().manual_seed(0),
        }
        self._batches: Iterator[Any] | None = None
        self._asked: deque[Portion] = deque()
        self._guess: tuple[SampleLedger, Place] | None = None

    def __iter__(self) -> Iterator[Tokens]:
        """Yields what the workers shall load next, for ever."""
        while True:
            portion = self._next_guess(is_final=True)
            self._asked.append(portion)
            yield self._shard.tokens(portion)

    def _next_guess(self, *, is_final: bool) -> Portion:
        assert self._guess is not None  # set before the loader starts to draw
        ledger, place = self._guess
        deal = ledger.deal(place.num_seats, place.shares)
        if is_final:
            ledger.commit(deal)
        return self._shard.portion(deal, place)

    def take(self, wanted: Portion, *, may_miss: bool) -> Any:
        """Returns the batch of a portion, or MISSING if the workers were not asked for it.

        Args:
            wanted: the portion.
            may_miss: whether to return MISSING; the workers are asked for it otherwise.
        """
        shard = self._shard
        if self._batches is None or (not may_miss and not self._will_come(wanted)):
            self._guess = shard.ledger.copy(), shard.place
        batch = self._find(wanted) if self._will_come(wanted) else self.MISSING
        after = shard.ledger.copy()
        after.commit(shard.deal)
        following = shard.portion(after.deal(shard.place.num_seats, shard.place.shares), shard.place)
        if not self._will_come(following):
            self._guess = after, shard.place
        return batch

    def _will_come(self, portion: Portion) -> bool:
        return portion in self._asked or portion == self._next_guess(is_final=False)

    def _find(self, wanted: Portion) -> Any:
        """Returns the batch, and drops those before it."""
        if self._batches is None:
            self._batches = iter(DataLoader(batch_sampler=self, **self._loader_settings))
        while True:
            portion = self._asked.popleft()
            if portion == wanted:
                return next(self._batches)
            try:
                next(self._batches)
            except Exception:  # a wrong guess may have failed to load; the workers' own end shows up again
                if not self._asked:
                    raise

    def close(self) -> None:
        """Ends the worker processes."""
        self._batches = None
        self._asked.clear()
        self._guess = None


class _Samples(Dataset[Any]):
    """A data set whose samples are asked for together with the seed of their random draws."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.draws = not isinstance(dataset, TensorDataset)
        """Whether loading a sample may draw random numbers."""
        self._fetches_batches = callable(getattr(dataset, "__getitems__", None))

    def __getitem__(self, token: Token) -> Any:
        seed, index = token
        if self.draws:
            _seed_all(seed)
        return self.dataset[index]

    def __getitems__(self, tokens: Sequence[Token]) -> list[Any]:
        if not self._fetches_batches:
            return [self[token] for token in tokens]
        if self.draws:
            _seed_all(mix(*(seed for seed, _ in tokens)))
        samples: list[Any] = self.dataset.__getitems__([index for _, index in tokens])
        return samples


class _WorkerStart:
    """What a worker process does first: it must not outlive the trainer, whose sockets it has inherited."""

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        parent = parent_process()
        if parent is None or not parent.is_alive():  # it ended before we could ask to be told
            os._exit(1)
        if self._init is not None:
            self._init(worker)


class _RandomState:
    """Keeps the random numbers of the training apart from those of a sample loaded in its process."""

    def __init__(self, is_needed: bool) -> None:
        self._is_needed = is_needed

    def __enter__(self) -> None:
        if self._is_needed:
            self._kept = torch.get_rng_state(), random.getstate(), np.random.get_state()

    def __exit__(self, *error: object) -> None:
        if self._is_needed:
            torch.set_rng_state(self._kept[0])
            random.setstate(self._kept[1])
            np.random.set_state(self._kept[2])


def _seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def _check_dataset(dataset: object) -> None:
    if isinstance(dataset, IterableDataset):
        raise ConfigError(
            f"{type(dataset).__name__} is an iterable data set: its samples have no numbers, so nobody can say "
            "which were used; valid: a data set with __len__ and __getitem__"
        )
    if isinstance(dataset, str | bytes):
        raise ConfigError(f"source = {quoted(dataset)}: must be a data set, or a DataLoader of one")
    missing = [name for name in ("__len__", "__getitem__") if not hasattr(dataset, name)]
    if missing:
        raise ConfigError(
            f"source is a {type(dataset).__name__}, which has no {missing[0]}; valid: a data set with __len__ and "
            "__getitem__, or a DataLoader of one"
        )


def _shuffles(loader: DataLoader[Any]) -> bool:
    """Returns whether the loader's samples come in a random order, each once."""
    valid = "valid: shuffle=True or shuffle=False, or a torch.utils.data.Subset of the samples wanted"
    if loader.batch_sampler is None:
        raise ConfigError("the loader has batch_size=None: it does not make batches; valid: an integer")
    if type(loader.batch_sampler) is not BatchSampler:
        raise ConfigError(
            f"the loader has the batch sampler {type(loader.batch_sampler).__name__}; batches are dealt by the "
            f"ledger, so that every sample is used once; {valid}"
        )
    sampler = loader.sampler
    if isinstance(sampler, RandomSampler):
        if sampler.replacement or sampler.num_samples != len(loader.dataset):  # type: ignore[arg-type]
            raise ConfigError(
                "the loader draws with replacement or a number of samples of its own; an epoch uses every "
                f"sample once; {valid}"
            )
        return True
    if isinstance(sampler, DistributedSampler):  # what deals to ranks elsewhere; the ledger does so here
        return sampler.shuffle
    if type(sampler) is not SequentialSampler:
        raise ConfigError(
            f"the loader has the sampler {type(sampler).__name__}; the order comes from the ledger; {valid}"
        )
    return False
