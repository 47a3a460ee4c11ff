"""Refit kernels for CPUs: the reference implementation (oracle), applied to chunks of rows.

Chunks keep the float32 work space small and in cache: 256 rows of a 172 MiB shard need 24 MiB, not 778 MiB.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import torch

from ascend_quant.kernels.chunks import sum_of, write_in_chunks
from ascend_quant.kernels.counters import Counters
from ascend_quant.kernels.storage import WeightLayout
from ascend_quant.kernels.writes import Job

READS_ARE_FREE = True

ROWS = 256  # a multiple of a block's rows


def write(jobs: Sequence[Job], counters: Counters, receipt: bool = True) -> None:
    """Carry out writes in chunks of rows.

    Args:
        receipt: whether changed codes and the digest are counted; non-finite elements always are.
    """
    for row_write, source, slot in chain.from_iterable(job.each() for job in jobs):
        write_in_chunks(row_write, source, counters.bad_of(slot), counters, receipt, ROWS)


def prepare(device: torch.device, writes: Iterable = ()) -> None:
    """Do nothing: no kernel is compiled on CPUs."""


def digests(
    tensors: Sequence[torch.Tensor | WeightLayout], first_rows: Sequence[int] = (), first_columns: Sequence[int] = ()
) -> torch.Tensor:
    """Return `oracle.digest` of each tensor as int64, computed in chunks of rows."""
    found = torch.zeros(len(tensors), dtype=torch.int64)
    for i, tensor in enumerate(tensors):
        found[i] = sum_of(tensor, first_rows[i] if first_rows else 0, first_columns[i] if first_columns else 0)
    return found


def read_digests(found: Sequence[torch.Tensor]) -> list[int]:
    """Return the results of several calls of `digests` as one list."""
    return torch.cat(list(found)).tolist()
