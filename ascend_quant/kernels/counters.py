"""Statistics that kernels collect while writing: non-finite elements, changed values, and the checksum."""

import torch

from ascend_quant.oracle import PRIME

# Every 64th row of a resident tensor is compared with its previous codes: reading all rows would cost a third more.
SAMPLE = 64


class Counters:
    """Counters that kernels update during one refit; they stay on the device and are read once.

    Attributes:
        totals: int64 (SPREAD, TOTALS): changed codes, sums of the digest's low 32 bits and of its high bits, and codes
            clamped by static scales; spread over rows to avoid contention between atomics.
        bad: blocks of int64 (BLOCK), non-finite elements of each source tensor.
        clamped: the number of clamped codes at the last `read`.
    """

    SPREAD, TOTALS, BLOCK = 64, 4, 4096
    NONFINITE = "elements"  # the unit of `read`'s non-finite counts

    def __init__(self, device: torch.device, sparing: bool = False):  # `sparing` is for NPUs
        self.totals = torch.zeros(self.SPREAD, self.TOTALS, dtype=torch.int64, device=device)
        self.bad: list[torch.Tensor] = []
        self.slots = self.clamped = 0

    def new_slots(self, count: int = 1) -> int:
        """Reserve `count` consecutive slots for source tensors; return the first."""
        self.slots += count
        while self.slots > len(self.bad) * self.BLOCK:
            self.bad.append(torch.zeros(self.BLOCK, dtype=torch.int64, device=self.totals.device))
        return self.slots - count

    def bad_of(self, slot: int) -> torch.Tensor:
        """Return the non-finite counter of one source tensor, a view of one element."""
        return self.bad[slot // self.BLOCK][slot % self.BLOCK]

    def read(self) -> tuple[int, int, dict[int, int]]:
        """Return changed codes, the digest, and non-finite elements by slot; synchronizes once if all are finite."""
        sums = torch.cat([self.totals.sum(0), *(block.sum().view(1) for block in self.bad)]).tolist()
        changed, low, high, self.clamped, *bad = sums
        found = {}
        for i, block in enumerate(self.bad):
            if bad[i]:
                found |= {i * self.BLOCK + j: n for j, n in enumerate(block.tolist()) if n}
        return changed, (low + (high << 32)) % PRIME, found


def sampled(first_row: int, rows: int) -> slice:
    """Return which of `rows` rows from row `first_row` of the tensor on are compared with their previous codes."""
    return slice(-first_row % SAMPLE, rows, SAMPLE)
