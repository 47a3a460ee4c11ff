"""Methods that part "kernels" times over the same matrices: ours in its forms, the competitors, a copy as the floor."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch

from ascend_quant.kernels import kernels_for
from ascend_quant.kernels.counters import Counters
from ascend_quant.kernels.writes import Fp8Write, Int8Write, Job, RowWrite
from ascend_quant.refit import Refit
from ascend_quant.refit.plan import Entry, Plan, together
from benchmarks.matrices import Matrix

Call = Callable[[], object]
FP8 = ("fp8", "fp8_tensor", "fp8_blocks")
BLOCK = 128
POISON = 3e38  # what buffers hold before they are written


def competitors(matrices: Sequence[Matrix]) -> dict[str, Call]:
    """Return how others turn BF16 weights into resident int8 codes, by the names of the report.

    Written from what they do, each step an operation of torch. All take the matrices one after the other, as their
    owners' loaders do, and end in the same resident buffers as ours.
    """
    calls = {"FlashRL": frozen_scales(matrices), "vLLM online": online(matrices)}
    if find_spec("vllm") is not None:
        calls["vLLM in place"] = vllm_in_place(matrices)
    return calls


def ours(matrices: Sequence[Matrix], device: torch.device) -> dict[str, Call]:
    """Return the kernels with and without the receipt's counting, their writes prepared; and a whole refit by plan."""
    counters = Counters(device)
    jobs, write = [int8_job(matrices, counters)], kernels_for(device).write
    return {
        "ours": lambda: write(jobs, counters),
        "ours, no receipt": lambda: write(jobs, counters, receipt=False),
        "ours, refit by plan": refit_by_plan(matrices),
    }


def fp8(matrices: Sequence[Matrix], device: torch.device) -> dict[str, Call]:
    """Return the fp8 kernels, one call a kind; they overwrite the int8 codes."""
    calls = {}
    for kind in FP8:
        counters = Counters(device)
        jobs = [fp8_job(kind, matrices, counters)]
        calls[f"ours, {kind}"] = lambda jobs=jobs, counters=counters: kernels_for(device).write(jobs, counters)
    return calls


def int8_job(matrices: Sequence[Matrix], counters: Counters) -> Job:
    """Return the job of all matrices into their resident int8 buffers."""
    return _job([write_of(matrix) for matrix in matrices], matrices, counters)


def fp8_job(kind: str, matrices: Sequence[Matrix], counters: Counters) -> Job:
    """Return the job of all matrices for an fp8 kind, into the bytes of the int8 codes and scales of its own."""
    writes = []
    for matrix in matrices:
        codes, scale = matrix.codes.view(torch.float8_e4m3fn), fp8_scale(kind, matrix)
        where = {"scale": scale, "weight": matrix.resident.weight}
        tensor_rows = (0, len(codes)) if kind == "fp8_tensor" else None
        writes.append(Fp8Write.of(matrix.source, codes, **where, tensor_rows=tensor_rows))
    return _job(writes, matrices, counters)


def write_of(matrix: Matrix) -> RowWrite:
    """Return the write of a whole matrix into its resident buffers."""
    return Int8Write.of(matrix.source, matrix.codes, scale=matrix.scale, weight=matrix.resident.weight)


def fp8_scale(kind: str, matrix: Matrix) -> torch.Tensor:
    """Make a buffer for the scales: one a row, or one a block."""
    rows, columns = matrix.source.shape
    shape = (-(-rows // BLOCK), -(-columns // BLOCK)) if kind == "fp8_blocks" else (rows,)
    return torch.full(shape, POISON, device=matrix.source.device)


def _job(writes: Sequence[RowWrite], matrices: Sequence[Matrix], counters: Counters) -> Job:
    first = counters.new_slots(len(writes))
    return Job.of_each(writes, [matrix.source for matrix in matrices], range(first, first + len(writes)))


def refit_by_plan(matrices: Sequence[Matrix]) -> Call:
    """Return what an engine does with a refit whose plan is known, from open to receipt; it waits for the device."""
    refit = Refit([matrix.resident for matrix in matrices])
    refit.plan = Plan({m.name: Entry(m.source.shape, [(m.resident, write_of(m))]) for m in matrices})
    named = [(matrix.name, matrix.source) for matrix in matrices]

    def run() -> None:
        with refit.session():
            for group in together(named):
                if rest := refit.place(group):
                    raise RuntimeError(f"{rest[0][0]} does not go by the plan that it was put in: a bug")
                refit.batch.flush()

    return run


def frozen_scales(matrices: Sequence[Matrix]) -> Call:
    """Return FlashRL's int8: scales from a profile, made once; the product in float32, rounded, clamped, copied.

    A profile holds one factor an output row, and one an input column where a norm was smoothed into the layer.
    """
    profile = [(1 / matrix.scale_of_rows(), torch.ones_like(matrix.source[:1].float())) for matrix in matrices]

    def run() -> None:
        for matrix, (per_row, per_column) in zip(matrices, profile, strict=True):
            product = matrix.source * per_row * per_column
            matrix.codes.copy_(product.round().clamp(-128, 127).to(torch.int8))

    return run


def online(matrices: Sequence[Matrix]) -> Call:
    """Return vLLM's online int8 (its experts): largest magnitude, division, rounding and clamping in BF16, a cast."""

    def run() -> None:
        for matrix in matrices:
            scale = matrix.source.abs().amax(dim=1) / 127
            codes = matrix.source.div(scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8)
            matrix.codes.copy_(codes)
            matrix.scale.copy_(scale)

    return run


def vllm_in_place(matrices: Sequence[Matrix]) -> Call:
    """Return the kernel of vLLM's `scaled_int8_quant`, given the resident tensors to write to."""
    import vllm._custom_ops  # noqa: F401  registers the kernel

    kernel = torch.ops._C.dynamic_scaled_int8_quant

    def run() -> None:
        for matrix in matrices:
            kernel(matrix.codes, matrix.source, matrix.scale.unsqueeze(1), None)

    return run


class Copy:
    """Plain copy within the device: the floor of everything that reads and writes memory.

    Args:
        nbytes: of the buffer that is read; another one like it is written.
    """

    def __init__(self, device: torch.device, nbytes: int):
        self.source = torch.empty(nbytes // 8, dtype=torch.int64, device=device).random_()
        self.target = torch.empty_like(self.source)

    def of(self, moved: int) -> Call:
        """Return copies that read and write `moved` bytes together, through the whole buffer again and again."""
        full, rest = divmod(moved // 2, self.source.nbytes)

        def run() -> None:
            for _ in range(full):
                self.target.copy_(self.source)
            self.target[: rest // 8].copy_(self.source[: rest // 8])

        return run
