"""The ledger's rules written with lists of samples, as slowly and plainly as can be."""

from fractions import Fraction

from farstep.train.permutation import permute


class PlainLedger:
    """Holds the order of the epoch as a list and crosses samples off it."""

    def __init__(
        self, num_samples: int, batch_size: int, *, seed: int, per_group: bool, shuffle: bool, drop_last: bool
    ):
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.per_group = per_group
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.epoch = 0
        self.unused = self.order(0)

    def order(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.num_samples))
        return [permute(i, self.num_samples, self.seed, epoch) for i in range(self.num_samples)]

    def deal(self, seats: int, shares: list[int] | None) -> tuple[int, list[list[int]]]:
        """Returns the epoch and the samples of each seat."""
        size = self.batch_size * (seats if self.per_group else 1)
        epoch, unused = self.epoch, self.unused
        if self.drop_last and len(unused) < size and len(unused) < self.num_samples:
            epoch += 1
            unused = self.order(epoch)
        batch = unused[:size]
        weights = [1] * seats if shares is None else shares
        exact = [Fraction(len(batch) * weight, sum(weights)) for weight in weights]
        counts = [int(part) for part in exact]
        while sum(counts) < len(batch):
            lacking = [part - count for part, count in zip(exact, counts, strict=True)]
            counts[lacking.index(max(lacking))] += 1
        dealt = []
        for count in counts:
            dealt.append(batch[:count])
            batch = batch[count:]
        return epoch, dealt

    def commit(self, epoch: int, used: list[int]) -> None:
        if epoch != self.epoch:
            self.epoch, self.unused = epoch, self.order(epoch)
        self.unused = [sample for sample in self.unused if sample not in set(used)]
        if not self.unused:
            self.epoch += 1
            self.unused = self.order(self.epoch)
