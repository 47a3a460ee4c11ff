"""Everything that part "kernels" times, over the same matrices: ours in its forms, the competitors, the floor."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch

from ascend_quant.kernels import kernels_for
from ascend_quant.kernels.moves import Counters, Job, Move
from ascend_quant.refit import Refit
from ascend_quant.refit.plan import Entry, Plan, together
from benchmarks import arithmetic
from benchmarks.matrices import Matrix

Call = Callable[[], object]
FP8 = ("fp8", "fp8_tensor", "fp8_blocks")
BLOCK = 128
POISON = 3e38  # what buffers hold before they are written


def competitors(matrices: Sequence[Matrix]) -> dict[str, Call]:
    """By the names of the report."""
    calls = {"FlashRL": arithmetic.frozen_scales(matrices), "vLLM online": arithmetic.online(matrices)}
    if find_spec("vllm") is not None:
        calls["vLLM scaled_int8_quant + copy"] = arithmetic.vllm_quant_and_copy(matrices)
        calls["vLLM in place"] = arithmetic.vllm_in_place(matrices)
    return calls


def ours(matrices: Sequence[Matrix], device: torch.device) -> dict[str, Call]:
    """The kernels with and without the receipt's counting, their moves prepared; and a whole refit by plan."""
    counters = Counters(device)
    jobs, write = [int8_job(matrices, counters)], kernels_for(device).write
    return {
        "ours": lambda: write(jobs, counters),
        "ours, no receipt": lambda: write(jobs, counters, receipt=False),
        "ours, refit by plan": refit_by_plan(matrices),
    }


def fp8(matrices: Sequence[Matrix], device: torch.device) -> dict[str, Call]:
    """The fp8 kernels, one call a kind; they overwrite the int8 codes."""
    calls = {}
    for kind in FP8:
        counters = Counters(device)
        jobs = [fp8_job(kind, matrices, counters)]
        calls[f"ours, {kind}"] = lambda jobs=jobs, counters=counters: kernels_for(device).write(jobs, counters)
    return calls


def int8_job(matrices: Sequence[Matrix], counters: Counters) -> Job:
    """All matrices into their resident buffers."""
    return _job([move_of(matrix) for matrix in matrices], matrices, counters)


def fp8_job(kind: str, matrices: Sequence[Matrix], counters: Counters) -> Job:
    """The same for an fp8 kind, into the bytes of the int8 codes and scales of its own."""
    moves = []
    for matrix in matrices:
        codes, scale = matrix.codes.view(torch.float8_e4m3fn), fp8_scale(kind, matrix)
        among = (0, len(codes)) if kind == "fp8_tensor" else None
        moves.append(Move.of(matrix.source, codes, scale, weight=matrix.resident.weight, among=among))
    return _job(moves, matrices, counters)


def move_of(matrix: Matrix) -> Move:
    """All of a matrix into its resident buffers."""
    return Move.of(matrix.source, matrix.codes, matrix.scale, weight=matrix.resident.weight)


def fp8_scale(kind: str, matrix: Matrix) -> torch.Tensor:
    """A buffer for the scales: one a row, or one a block."""
    rows, columns = matrix.source.shape
    shape = (-(-rows // BLOCK), -(-columns // BLOCK)) if kind == "fp8_blocks" else (rows,)
    return torch.full(shape, POISON, device=matrix.source.device)


def _job(moves: Sequence[Move], matrices: Sequence[Matrix], counters: Counters) -> Job:
    first = counters.new_slots(len(moves))
    return Job.of_each(moves, [matrix.source for matrix in matrices], range(first, first + len(moves)))


def refit_by_plan(matrices: Sequence[Matrix]) -> Call:
    """What an engine does with a refit whose plan is known, from open to receipt; it waits for the device."""
    refit = Refit([matrix.resident for matrix in matrices])
    refit.plan = Plan({m.name: Entry(m.source.shape, [(m.resident, move_of(m))]) for m in matrices})
    named = [(matrix.name, matrix.source) for matrix in matrices]

    def run() -> None:
        with refit.session():
            for group in together(named):
                if rest := refit.place(group):
                    raise RuntimeError(f"{rest[0][0]} does not go by the plan that it was put in: a bug")
                refit.flush()

    return run
