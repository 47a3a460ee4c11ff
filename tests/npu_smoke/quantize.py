"""What ascend_quant.kernels.npu writes and counts, against the oracle, bit for bit; and npu_dynamic_quant beside it."""

from collections.abc import Callable, Sequence

import torch

from ascend_quant import oracle
from ascend_quant.kernels import npu
from ascend_quant.kernels.moves import Job, Move
from ascend_quant.kernels.npu_formats import new_codes
from benchmarks.matrices import shapes_of
from benchmarks.models import get_model
from npu_smoke import data
from npu_smoke.checks import Setting, check, require
from npu_smoke.compare import difference, require_equal

WEIGHT = 2 * 12345 + 1  # of the tensor in a digest of many
EXPERTS = 8  # of the 128: the host has to check them


def shapes(on: Setting) -> list[tuple[int, int]]:
    """(N, K) of the different linear layers of a 7B model."""
    model = get_model("tiny" if on.small else "qwen2.5-7b")
    return sorted(set(shapes_of(model.cut(1)).values()))


def stack(on: Setting) -> tuple[int, int, int]:
    """(E, N, K) of the gate and up projections of some experts of Qwen3-30B-A3B."""
    model = get_model("tiny-moe" if on.small else "qwen3-30b-a3b")
    experts = 3 if on.small else EXPERTS
    return experts, 2 * model.expert_width, model.hidden


@check("quantize.rows", claim="bytes")
def rows(on: Setting, numbers: dict) -> None:
    """Are codes, scales and digest the oracle's, for codes (N, K)?"""
    for shape in shapes(on):
        codes_NK = torch.zeros(shape, dtype=torch.int8, device=on.device)
        _write_and_compare(on, numbers, data.awkward(*shape, seed=sum(shape)), codes_NK, None, lambda c=codes_NK: c)


@check("quantize.nd", claim="bytes")
def nd(on: Setting, numbers: dict) -> None:
    """The same, for plain (K, N) that the engine computes with?"""
    _into_places(on, numbers, shapes(on), nz=False)


@check("quantize.nz", claim="bytes")
def nz(on: Setting, numbers: dict) -> None:
    """The same, for FRACTAL_NZ?"""
    _into_places(on, numbers, shapes(on), nz=True)


@check("quantize.experts", claim="bytes")
def experts(on: Setting, numbers: dict) -> None:
    """The same, for a stack of experts in FRACTAL_NZ?"""
    _into_places(on, numbers, [stack(on)], nz=True)


@check("quantize.unaligned", claim="bytes")
def unaligned(on: Setting, numbers: dict) -> None:
    """The same, where FRACTAL_NZ is padded and panels are shared?"""
    _into_places(on, numbers, [(72, 40), (33, 16), (2, 40, 24)], nz=True)


@check("quantize.columns", claim="same bytes")
def columns(on: Setting, numbers: dict) -> None:
    """Are a row-parallel shard's codes those of the unsharded rows?"""
    n, k = shapes(on)[0]
    whole_NL = data.awkward(n, k, seed=21)
    part = slice(k // 4 // 32 * 32, k // 2 // 32 * 32)
    codes, scales = oracle.quantize_weight(whole_NL)
    there = on.put(whole_NL)
    target, scale_N = (torch.zeros(n, part.stop - part.start, dtype=torch.int8), torch.zeros(n))
    target, scale_N = on.put(target), on.put(scale_N)
    move = Move(target, scale_N, 0, WEIGHT, part.start, k, 1, whole=(0, k))
    npu.write([Job.of(move, there)], _counters(on))
    require_equal(target, codes[:, part], numbers, "codes")
    require_equal(scale_N, scales, numbers, "scales")


@check("quantize.copies", claim="bytes")
def copies(on: Setting, numbers: dict) -> None:
    """Are weights that stay in their dtype copied and digested right?"""
    for start, end in ((torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16), (torch.float32,) * 2):
        source = data.weights(77, 256, seed=22).to(start)
        target, counters = torch.zeros(77, 256, dtype=end, device=on.device), _counters(on)
        there = on.put(source)
        npu.write([Job.of(Move.of(there, target, weight=WEIGHT), there)], counters)
        name = f"{start} to {end}".replace("torch.", "")
        require_equal(target, source.to(end), numbers, name)
        expected = oracle.add_digests(oracle.digest(source.to(end)), weights=[WEIGHT])
        require(counters.read()[1] == expected, f"{name}: another digest than the oracle's")


@check("quantize.not_finite", claim="bad tensors")
def not_finite(on: Setting, numbers: dict) -> None:
    """Are NaN and Inf counted by the tensor that they came in?"""
    n, k = shapes(on)[0]
    sources = [data.weights(n, k, seed=23 + i) for i in range(3)]
    sources[0][3, 5], sources[2][n - 1, :7], sources[2][0, k - 1] = float("nan"), float("-inf"), float("inf")
    codes_NK, scale_N = torch.zeros(n, k, dtype=torch.int8), torch.zeros(n)
    counters = _counters(on)
    jobs, scales = [], []
    for slot, source in enumerate(sources):
        there, target, scale = on.put(source), on.put(codes_NK), on.put(scale_N)
        jobs.append(Job.of(Move.of(there, target, scale), there, slot))
        scales.append(scale)
    npu.write(jobs, counters)
    found = counters.read()[2]
    numbers["counted"] = {str(slot): count for slot, count in found.items()}
    require(set(found) == {0, 2}, f"counted {found}: tensors 0 and 2 are not finite, 1 is")
    bad = [(~torch.isfinite(scale.cpu())).nonzero().flatten().tolist() for scale in scales]
    require(bad == [[3], [], [0, n - 1]], f"rows with a scale that is not finite: {bad}")


@check("quantize.dynamic_quant", needed=False, claim="rule")
def dynamic_quant(on: Setting, numbers: dict) -> None:
    """Does npu_dynamic_quant give the oracle's codes and scales?"""
    operator = data.operator("npu_dynamic_quant")
    apart = []
    for tokens, length in (
        ((16, 256),) if on.small else ((1, 3584), (16, 3584), (256, 3584), (256, 18944), (2048, 2048))
    ):
        x_MK = torch.randn(tokens, length, generator=data.generator(26)).to(torch.bfloat16)
        expected = oracle.quantize_rows(x_MK)
        for name, found, wanted in zip(("codes", "scales"), operator(on.put(x_MK)), expected, strict=True):
            numbers[f"{name} of {tokens} x {length}"] = differing = difference(found, wanted)
            if differing["differ"]:
                apart.append(f"{differing['differ']} of {differing['of']} {name} of {tokens} x {length}")
    zeros = operator(torch.zeros(2, 256, dtype=torch.bfloat16, device=on.device))
    numbers["of zeros"] = [sorted(set(part.flatten().tolist())) for part in zeros]
    require(not apart, f"differ: {'; '.join(apart)}")


def _into_places(on: Setting, numbers: dict, all_shapes: list[Sequence[int]], nz: bool) -> None:
    for shape in all_shapes:
        if nz:
            data.operator("npu_format_cast")
        with torch.device(on.device):
            place = new_codes((*shape[:-2], shape[-1], shape[-2]), nz)
        w_NK = data.awkward(place.shape[0], place.shape[1], seed=sum(shape))
        stand_in = torch.empty(place.shape, dtype=torch.int8, device="meta")
        address = place.tensor.data_ptr()
        _write_and_compare(on, numbers, w_NK, stand_in, place, lambda place=place: place[:])
        digest = npu.digests([place]).tolist()[0]
        require(digest == oracle.digest(oracle.quantize_weight(w_NK)[0]), f"{shape}: the digest of what was read back")
        require(place.tensor.data_ptr() == address, f"{shape}: the weight has another address after writes")


def _write_and_compare(on: Setting, numbers: dict, w_NK, target_NK, place, read: Callable[[], torch.Tensor]) -> None:
    """Write the rows in three shards, the last one first, and compare everything."""
    count, name = len(w_NK), " x ".join(map(str, w_NK.shape))
    scale_N, there, counters = torch.full((count,), 7.0, device=on.device), on.put(w_NK), _counters(on)
    jobs = []
    for slot, part in enumerate((slice(count // 2, count), slice(0, count // 3), slice(count // 3, count // 2))):
        source = there[part]
        move = Move.of(source, target_NK[part], scale_N[part], first_row=part.start, weight=WEIGHT, place=place)
        jobs.append(Job.of(move, source, slot))
    npu.write(jobs, counters)
    codes, scales = oracle.quantize_weight(w_NK)
    require_equal(scale_N, scales, numbers, f"scales of {name}")
    require_equal(read(), codes, numbers, f"codes of {name}")
    _, digest, bad = counters.read()
    wanted = oracle.add_digests(oracle.digest(codes), oracle.digest(scales), weights=[WEIGHT, 3 * WEIGHT])
    require(digest == wanted, f"{name}: digest {digest:016x}, by the oracle {wanted:016x}")
    require(not bad, f"{name}: counted as not finite, by shard: {bad}; all of it is finite")


def _counters(on: Setting) -> npu.Counters:
    counters = npu.Counters(on.device)
    counters.new_slots(3)
    return counters
