"""What a weight sync moves on each hop, and how long that takes on paper, by what the trainer sends.

    shards --gather--> each trainer's rank --wire--> beside each engine --bucket--> engine --write--> its tensors

Without a wire, trainer and engine take turns on the same devices. verl does the hops of a bucket one after the other;
gathers go on meanwhile, and are counted all the same: the sum is the most that the hops take together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ascend_quant.advise import AdviceError
from ascend_quant.advise.devices import Device
from ascend_quant.advise.layers import BF16, CODE, FLOAT32
from ascend_quant.advise.roofline import LINK_EFFICIENCY, STREAM
from ascend_quant.advise.shapes import Shape

SENDS = ("bf16", "int8", "delta")
TAIL = 16  # bytes behind each row of codes: its scale, aligned (refit/coding.py)
# Bytes of a patch over BF16's, at a learning rate of 1e-6: Gaussian weights of 0.02, each step the rate up or down.
CODES_CHANGED, PLAIN_CHANGED = 0.0036, 0.064
NODE = 8  # devices that the link joins
# Two H200s, 7B, 2026-11-25, 656 ms: memory given back 200, wake-ups 165, calls, barrier and ends the rest of 430; of
# the sender's 220 the hops below are 44, and what is left is the host's, for 339 tensors.
COLOCATED_SECONDS, HOST_SECONDS = 0.43, 0.52e-3
TENSORS = 12  # of a layer: seven matrices, and norms and biases
HOPS = ("quantize", "gather", "digests", "patch", "wire", "bucket", "write", "host", "memory and calls")


@dataclass(frozen=True)
class Route:
    """Between trainers and engines.

    Attributes:
        trainers: devices that train.
        tp: devices of one engine, each of which is sent the whole model.
        wire: bytes/s from a trainer's host to the engines'; None where these are on the trainer's devices.
    """

    trainers: int
    tp: int
    wire: float | None = None

    def __post_init__(self) -> None:
        if self.trainers < 1:
            raise AdviceError(f"--sync-from must be at least 1 device that trains, not {self.trainers}")
        if self.wire is not None and not 1e8 <= self.wire <= 1e13:
            raise AdviceError(f"--wire must be a number from 0.1 to 10000 GB/s, not {self.wire / 1e9:g}")


@dataclass(frozen=True)
class Sync:
    """One weight sync.

    Attributes:
        bytes: that leave each trainer's rank, or cross the wire.
        seconds: by hop.
        unknown: whether time that nobody has measured comes on top: the host's with experts, which are sent one by one;
            what verl does around a sync to engines apart.
    """

    bytes: float
    seconds: dict[str, float]
    unknown: bool

    @property
    def together(self) -> float:
        return sum(self.seconds.values())


def sent_bytes(shape: Shape, send: str) -> float:
    """Of the whole model, norms and biases left out."""
    elements, rows, kept = _sizes(shape)
    if send == "bf16":
        return BF16 * (elements + kept)
    if send == "int8":
        return CODE * elements + TAIL * rows + BF16 * kept
    return BF16 * (CODES_CHANGED * elements + PLAIN_CHANGED * kept)


def syncs(shape: Shape, device: Device, route: Route) -> dict[str, Sync]:
    """By what is sent; patches go over a wire alone."""
    sends = SENDS if route.wire is not None else SENDS[:2]
    unknown = route.wire is not None or shape.experts is not None
    return {send: Sync(sent_bytes(shape, send), dict(_hops(shape, device, route, send)), unknown) for send in sends}


def _hops(shape: Shape, device: Device, route: Route, send: str) -> Iterator[tuple[str, float]]:
    elements, _, kept = _sizes(shape)
    copy, whole = device.bandwidth * STREAM, sent_bytes(shape, "bf16" if send == "bf16" else "int8")
    if send != "bf16":
        yield "quantize", (FLOAT32 + CODE) * elements / route.trainers / copy
    yield "gather", whole * (1 - 1 / route.trainers) / _link(device, route)
    yield "digests", 2 * whole / copy  # on both sides
    if route.wire is not None:
        if send == "delta":  # compared with the base, which is then patched, here and there
            yield "patch", 4 * whole / copy
        yield "wire", sent_bytes(shape, send) / (route.wire * LINK_EFFICIENCY)
    yield "bucket", 2 * whole / copy
    yield "write", (whole + CODE * elements + BF16 * kept) / route.tp / copy
    if shape.experts is None:
        yield "host", HOST_SECONDS * (TENSORS * shape.depth + 3)
    if route.wire is None:
        yield "memory and calls", COLOCATED_SECONDS


def _link(device: Device, route: Route) -> float:
    link = device.link if route.trainers <= NODE or route.wire is None else min(device.link, route.wire)
    return link * LINK_EFFICIENCY


def _sizes(shape: Shape) -> tuple[float, float, float]:
    """Elements and rows of what is quantized, and elements of the rest."""
    matrices = shape.matrices()
    elements, rows = sum(times * k * n for times, (k, n) in matrices), sum(times * n for times, (_, n) in matrices)
    return elements, rows, shape.kept()


def assumed(device: Device, route: Route) -> list[str]:
    """A sentence or two each."""
    lines = [
        f"{route.trainers} devices train (FSDP2), engines have {route.tp}; copies and kernels reach {STREAM} of "
        f"{device.bandwidth / 1e12:.2f} TB/s, links {LINK_EFFICIENCY:.0%} of {device.link / 1e9:.0f} GB/s.",
        "The hops' times are added up, though gathers go on while buckets are written. The host takes "
        f"{HOST_SECONDS * 1e3:.2f} ms a tensor, as with a 7B on two H200s; with experts, which are sent one by one, "
        "nobody has timed it, and it is left out.",
    ]
    if route.wire is None:
        memory = "Memory that is given back and taken again, and calls"
        return [*lines, f"{memory}: {COLOCATED_SECONDS} s, as measured with a 7B on two H200s."]
    return [
        *lines,
        f"One broadcast at {LINK_EFFICIENCY:.0%} of {route.wire / 1e9:g} GB/s reaches all engines; trainers of more "
        f"than {NODE} devices gather over such wires too. What verl does around a sync (requests aborted and resumed, "
        "process groups, the KV cache) comes on top and was not measured.",
        f"delta: a learning rate of 1e-6, {CODES_CHANGED:.2%} of BF16's bytes for int8 rows and {PLAIN_CHANGED:.1%} "
        "for what stays BF16, from a random walk; its base lies on the devices.",
    ]
