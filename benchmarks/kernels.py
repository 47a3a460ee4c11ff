"""Part "kernels": all weight matrices of a model quantized into resident buffers, by us and by others."""

from collections.abc import Sequence

import torch

from ascend_quant import oracle
from ascend_quant.kernels import kernels_for
from ascend_quant.kernels.counters import Counters
from benchmarks import methods
from benchmarks.matrices import BYTES, Matrix, elements, matrices_of, that_fits
from benchmarks.methods import Copy
from benchmarks.tasks import Task
from benchmarks.timing import compare

SEED = 1
COPIED = {"cuda": 4 << 30, "cpu": 64 << 20}  # bytes of one copy: far more than any cache holds
CHECKED = 16  # matrices that are compared with the oracle, at most


def run(task: Task) -> dict:
    """Check ours against the oracle, time everything, check again."""
    device = torch.device(task.device)
    copy = Copy(device, COPIED[device.type])
    model = that_fits(task.cut_model(), device)
    matrices = matrices_of(model, device, SEED)
    some = sample(matrices)
    faults = int8_faults(some, device)
    moved = BYTES * elements(model)
    calls = {
        "copy": copy.of(2 * copy.source.nbytes),
        "copy of the same bytes": copy.of(moved),
        **methods.ours(matrices, device),
        **methods.competitors(matrices),
        **methods.fp8(matrices, device),
    }
    samples = compare(calls, device, task.rounds)
    return {
        "layers": model.layers,
        "matrices": len(matrices),
        "elements": elements(model),
        "bytes": moved,
        "copied": 2 * copy.source.nbytes,
        "samples": {name: vars(figures) for name, figures in samples.items()},
        "faults": faults + int8_faults(some, device),
        "checked": len(some),
    }


def sample(matrices: Sequence[Matrix]) -> list[Matrix]:
    """Return a few matrices, the first and the last layer's among them."""
    half = CHECKED // 2
    return list(matrices) if len(matrices) <= CHECKED else [*matrices[:half], *matrices[-half:]]


def int8_faults(matrices: Sequence[Matrix], device: torch.device) -> list[str]:
    """Write into poisoned buffers; whose codes, scales or digest differ from the oracle's."""
    counters = Counters(device)
    jobs = [methods.int8_job(matrices, counters)]
    for matrix in matrices:
        matrix.codes.fill_(-128)
        matrix.scale.fill_(methods.POISON)
    kernels_for(device).write(jobs, counters)
    _, digest, bad = counters.read()
    faults = [f"{matrix.name}: not the oracle's bytes" for matrix in matrices if not is_int8(matrix)]
    if bad:
        faults.append(f"{len(bad)} matrices are said to have NaN or Inf, none has")
    pairs = [pair for matrix in matrices for pair in matrix.resident.tensors()]
    expected = oracle.add_digests(*(oracle.digest(t) for t, _ in pairs), weights=[weight for _, weight in pairs])
    if digest != expected:
        faults.append(f"digest {digest:016x}, by the oracle {expected:016x}")
    return faults


def is_int8(matrix: Matrix) -> bool:
    """Return whether a matrix's buffers hold the oracle's int8 codes and scales."""
    codes, scale = oracle.quantize_weight(matrix.source)
    return torch.equal(codes, matrix.codes) and torch.equal(scale.view(torch.int32), matrix.scale.view(torch.int32))
