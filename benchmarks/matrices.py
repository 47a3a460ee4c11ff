"""The weight matrices of a model's linear layers and experts, each beside its resident buffers, on one device."""

from dataclasses import dataclass

import torch

from ascend_quant import oracle
from ascend_quant.refit.resident import QuantizedWeight
from benchmarks.models import Model

BYTES = 3  # the floor of an element: two are read, one is written
ROOM = 0.85  # share of the free memory that a model's matrices may take
ON_CPU = 2 << 30  # bytes of them on a CPU


@dataclass(eq=False)
class Matrix:
    """Weight matrix: `source` (N, K) in BF16 as the trainer sends it, `codes` (N, K) int8 and `scale` (N) float32."""

    name: str
    source: torch.Tensor
    codes: torch.Tensor
    scale: torch.Tensor

    def __post_init__(self) -> None:
        self.resident = QuantizedWeight(self.name, self.codes, self.scale, self.source.shape[1])

    def scale_of_rows(self) -> torch.Tensor:
        """Return the oracle's scales, (N, 1) float32."""
        return (self.source.abs().amax(dim=1, keepdim=True).float() / oracle.INT8_MAX).clamp(min=1e-12)


def shapes_of(model: Model) -> dict[str, tuple[int, int]]:
    """Return the shape (N, K) of every matrix that a scheme quantizes, by its name in the checkpoint."""
    shapes = {}
    for name, shape in model.shapes().items():
        prefix, _, leaf = name.rpartition(".")
        if prefix.endswith(".experts"):
            for expert in range(shape[0]):
                if leaf == "down_proj":
                    shapes[f"{prefix}.{expert}.down_proj.weight"] = shape[1:]
                else:
                    half = (shape[1] // 2, shape[2])
                    shapes |= {f"{prefix}.{expert}.{part}_proj.weight": half for part in ("gate", "up")}
        elif name.endswith("_proj.weight"):
            shapes[name] = shape
    return shapes


def elements(model: Model) -> int:
    """Return the number of weights that are quantized."""
    return sum(rows * columns for rows, columns in shapes_of(model).values())


def that_fits(model: Model, device: torch.device) -> Model:
    """Cut the model to as many layers as the device has room for."""
    free = ROOM * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else ON_CPU
    per_layer = BYTES * elements(model.cut(1))
    return model.cut(max(1, min(model.layers, int(free / per_layer))))


def matrices_of(model: Model, device: torch.device, seed: int) -> list[Matrix]:
    """Make all matrices, with random values of rows that differ in size."""
    generator = torch.Generator(device).manual_seed(seed)
    matrices = []
    for name, shape in shapes_of(model).items():
        source = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, 0.02, generator=generator)
        source *= 0.5 + torch.rand(shape[0], 1, generator=generator, device=device).to(torch.bfloat16)
        codes = torch.empty(shape, dtype=torch.int8, device=device)
        matrices.append(Matrix(name, source, codes, torch.empty(shape[0], device=device)))
    return matrices
