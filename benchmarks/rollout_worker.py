"""A worker extension for vLLM: random weights, whatever a scheme keeps them in.

vLLM is given `Extension` as `worker_extension_cls`.
"""

import torch

from ascend_quant.integrations.vllm import register

SPREAD = 0.02  # standard deviation of a weight
LARGEST = 4 * SPREAD  # magnitude of a row, which its largest code stands for
CODES = {torch.int8: 127, torch.float8_e4m3fn: 448}
SLICE = 1 << 26  # elements drawn at a time

register()  # where the package lies in PYTHONPATH alone, vLLM's processes do not find it by its entry point


class Extension:
    """Worker extension: methods that vLLM adds to its worker class."""

    def fill_with_random_weights(self) -> None:
        """Overwrite every parameter in place: graphs are captured already."""
        model = self.model_runner.get_model()
        device = next(model.parameters()).device
        generator = torch.Generator(device).manual_seed(1)
        largest = max((CODES.get(parameter.dtype, 0) for parameter in model.parameters()), default=0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                fill(name, parameter.data, largest, generator)


def fill(name: str, values: torch.Tensor, largest: int, generator: torch.Generator) -> None:
    """Fill one parameter: codes up to `largest`, their scales, or floats."""
    if values.dtype in CODES:
        _normal(values, SPREAD * largest / LARGEST, generator, largest)
    elif "scale" in name:
        values.fill_(LARGEST / largest)
    elif "norm" in name:
        values.fill_(1.0)
    else:
        _normal(values, SPREAD, generator)


def _normal(values: torch.Tensor, spread: float, generator: torch.Generator, largest: int | None = None) -> None:
    """Fill with normal noise in slices, since codes are drawn as floats first."""
    for part in values.split(max(1, SLICE * len(values) // max(1, values.numel())), dim=0):
        drawn = torch.empty(part.shape, dtype=torch.float32, device=part.device)
        drawn.normal_(0.0, spread, generator=generator)
        part.copy_(drawn if largest is None else drawn.clamp_(-largest, largest))
