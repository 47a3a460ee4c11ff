"""Refits in place: nothing moves, and a captured ACL graph computes with the new weights when it is replayed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from ascend_quant import oracle
from ascend_quant.kernels.npu_formats import new_codes
from ascend_quant.refit import Refit
from ascend_quant.refit.resident import QuantizedWeight
from npu_smoke import data, experts
from npu_smoke.checks import NotPossible, Setting, check, require
from npu_smoke.compare import require_equal


@dataclass
class Resident:
    """A weight (.., N, K) that the device keeps, and its refits."""

    on: Setting
    shape: tuple[int, ...]
    nz: bool
    name: str = "weight"

    def __post_init__(self) -> None:
        with torch.device(self.on.device):
            self.place = new_codes((*self.shape[:-2], self.shape[-1], self.shape[-2]), self.nz)
        self.stand_in = torch.empty(self.shape, dtype=torch.int8, device="meta")
        self.scale = torch.zeros(self.shape[:-1], device=self.on.device)
        self.scale_bf16 = torch.zeros(self.shape[:-1], dtype=torch.bfloat16, device=self.on.device)
        weight = QuantizedWeight(
            self.name, self.stand_in, self.scale, self.shape[-1], place=self.place, copies=[self.scale_bf16]
        )
        self.weight, self.refit = weight, Refit([weight])

    def write(self, seed: int) -> torch.Tensor:
        """One refit with new values, which are returned; its receipt must be what lies in memory."""
        values = data.weights(*self.shape, seed=seed)
        there = self.on.put(values)
        with self.refit.session() as session:
            slot = session.batch.new_sources([(self.name, values.numel())])
            session.write(slot, self.weight, self.stand_in, there)
        require(self.refit.last_receipt.digest == self.refit.digest(), "the receipt's digest is not that of the memory")
        return values

    def where(self) -> list:
        """Addresses, and the weight's format."""
        import torch_npu

        tensors = (self.place.tensor, self.scale, self.scale_bf16)
        return [*(tensor.data_ptr() for tensor in tensors), torch_npu.get_npu_format(self.place.tensor)]


class Residents:
    """Several weights in FRACTAL_NZ, refitted together from values that lie on the device, as an engine does."""

    def __init__(self, on: Setting, shapes: Sequence[tuple[int, ...]]) -> None:
        self.held = [Resident(on, tuple(shape), nz=True, name=f"weight {place}") for place, shape in enumerate(shapes)]
        self.values = [on.put(data.weights(*one.shape, seed=59)) for one in self.held]
        self.refit = Refit([one.weight for one in self.held])
        self.bytes = sum(one.nbytes for one in self.values)

    def __call__(self) -> None:
        """One refit."""
        with self.refit.session() as session:
            for one, values in zip(self.held, self.values, strict=True):
                slot = session.batch.new_sources([(one.name, values.numel())])
                session.write(slot, one.weight, one.stand_in, values)


@check("refit.addresses", claim="in place")
def addresses(on: Setting, numbers: dict) -> None:
    """Do three refits leave every tensor where it is, with the oracle's bytes and digest?"""
    for shape, nz in (((96, 64), False), ((96, 64), True), ((3, 64, 80), True)):
        resident = Resident(on, shape, nz)
        before = resident.where()
        for seed in (61, 62, 63):
            codes, scales = oracle.quantize_weight(resident.write(seed))
            name = f"{list(shape)} {'NZ' if nz else 'ND'}"
            require_equal(resident.place[:], codes.view(-1, shape[-1]), numbers, f"codes of {name}")
            require_equal(resident.scale, scales, numbers, f"scales of {name}")
            require_equal(resident.scale_bf16, scales.to(torch.bfloat16), numbers, f"copied scales of {name}")
            require(resident.where() == before, f"{name}: addresses and format were {before}, are {resident.where()}")


@check("graphs.linear_nd", claim="in place")
def linear_nd(on: Setting, numbers: dict) -> None:
    """Does a captured W8A8 layer compute with refitted plain weights?"""
    _linear(on, numbers, nz=False)


@check("graphs.linear_nz", claim="in place")
def linear_nz(on: Setting, numbers: dict) -> None:
    """Does a captured W8A8 layer compute with refitted FRACTAL_NZ weights?"""
    _linear(on, numbers, nz=True)


@check("graphs.experts", claim="in place")
def fused_experts(on: Setting, numbers: dict) -> None:
    """Do captured grouped products with SwiGLU compute with refitted weights?"""
    count, width, length, rows = (4, 128, 64, 37) if on.small else (8, 1536, 2048, 256)
    w13 = Resident(on, (count, width, length), nz=True)
    w2 = Resident(on, (count, length, width // 2), nz=True)
    counts = torch.tensor(data.shares(rows, count)["empty experts"])
    x_MK, counts_E = _tokens(on, rows, length), on.put(counts)

    def forward() -> torch.Tensor:
        codes_MK, scale_M = data.operator("npu_dynamic_quant")(x_MK)
        sums = experts.grouped(on, codes_MK, w13.place.tensor, counts_E, output_dtype=torch.int32)
        codes_MH, scale_M = data.operator("npu_dequant_swiglu_quant")(
            sums,
            weight_scale=w13.scale,
            activation_scale=scale_M,
            group_index=counts_E,
            activate_left=True,
            quant_mode=1,
        )
        scales = {"scale": [w2.scale_bf16], "per_token_scale": [scale_M]}
        return experts.grouped(on, codes_MH, w2.place.tensor, counts_E, output_dtype=torch.bfloat16, **scales)

    _captured_sees_refits(on, numbers, [w13, w2], forward)


def _linear(on: Setting, numbers: dict, nz: bool) -> None:
    rows, length = (96, 64) if on.small else (4608, 3584)
    weight, x_MK = Resident(on, (rows, length), nz), _tokens(on, 16, length)

    def forward() -> torch.Tensor:
        codes_MK, scale_M = data.operator("npu_dynamic_quant")(x_MK)
        return data.operator("npu_quant_matmul")(
            codes_MK, weight.place.tensor, weight.scale, pertoken_scale=scale_M, output_dtype=torch.bfloat16
        )

    _captured_sees_refits(on, numbers, [weight], forward)


def _tokens(on: Setting, rows: int, length: int) -> torch.Tensor:
    return on.put(data.Tokens.of(rows, length, seed=64).x_MK)


def _captured_sees_refits(
    on: Setting, numbers: dict, residents: list[Resident], forward: Callable[[], torch.Tensor]
) -> None:
    """Capture, then refit and replay three times: what comes out is what an eager call gives."""
    for resident in residents:
        resident.write(65)
    replay, captured = capture(forward)
    before = [resident.where() for resident in residents]
    last = None
    for turn in range(3):
        for resident in residents:
            resident.write(66 + turn)
        replay()
        torch.npu.synchronize()
        found = captured.cpu()
        require(last is None or not torch.equal(found, last), "a replay after a refit gave what it gave before")
        require_equal(found, forward().cpu(), numbers, f"replay {turn + 1}")
        last = found
    require([resident.where() for resident in residents] == before, "a refit moved a tensor")


def capture(forward: Callable[[], object]) -> tuple[Callable[[], None], object]:
    """What replays a captured call, and the call's output, which each replay overwrites.

    Raises:
        NotPossible: not even an addition can be captured here.
    """
    if why := _why_no_graphs():
        raise NotPossible(why)
    return _captured(forward)


@cache
def _why_no_graphs() -> str:
    if not hasattr(torch.npu, "NPUGraph"):
        return "this torch_npu has no torch.npu.NPUGraph"
    one = torch.ones(16, device="npu")
    try:
        _captured(lambda: one + 1)
    except Exception as why:
        return f"not even an addition can be captured in an ACL graph: {why}"
    return ""


def _captured(forward: Callable[[], object]) -> tuple[Callable[[], None], object]:
    forward()  # what is compiled or allocated once is so before
    torch.npu.synchronize()
    stream, graph = torch.npu.current_stream(), torch.npu.NPUGraph()
    try:
        with torch.npu.graph(graph):
            output = forward()
    finally:
        torch.npu.set_stream(stream)  # a capture that fails to begin leaves its own one behind
    return graph.replay, output
