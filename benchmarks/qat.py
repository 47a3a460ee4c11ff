"""python -m benchmarks.qat: what fake quantization adds to a training step, beside the same step without it.

The layers of a model, without embedding and head (neither is quantized), forward and backward in BF16, one micro-batch.
Rounds begin with another method each; a method's ratio is that of the plain step in the same round. On a CPU the times
are the processor's, of all threads, which others on the machine lengthen little. Beside them, what depends on no
machine: operators that torch starts in a step, and the bytes that a forward pass keeps for the backward one beyond the
parameters. A whole step of RL also generates, scores, and has its head: its ratio is nearer 1.
"""

import copy
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from rich.table import Table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_quant.qat import SCHEMES, apply_fake_quantization
from benchmarks import report
from benchmarks.models import MODELS, get_model
from benchmarks.timing import compare, rotated, summary

PLAIN = "none"

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    model: Annotated[str, typer.Option(help=f"Whose shapes: {', '.join(MODELS)}.")] = "qwen2.5-0.5b",
    layers: Annotated[int, typer.Option(min=1, help="How many layers.")] = 2,
    tokens: Annotated[int, typer.Option(min=1, help="Of the micro-batch.")] = 1024,
    schemes: Annotated[str, typer.Option(help=f"With commas: {', '.join(SCHEMES)}.")] = "int8,int4_g32",
    rounds: Annotated[int, typer.Option(min=1, help="How often each method is timed.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Where every sample goes.")] = None,
) -> None:
    """Time training steps with fake quantization beside plain ones, with and without gradient checkpointing."""
    names = [name.strip() for name in schemes.split(",")]
    if unknown := [name for name in names if name not in SCHEMES]:
        raise typer.BadParameter(f"{unknown[0]!r} has no fake quantization", param_hint="--schemes")
    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"{device!r:.80}: choose from cpu, cuda", param_hint="--device")
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("there is no GPU: leave it at cpu", param_hint="--device")
    plain = layers_of(model, layers, torch.device(device))
    models = {PLAIN: plain} | {name: fake_quantized(plain, name) for name in names}
    x_MK = torch.randn(1, tokens, plain.config.hidden_size, dtype=torch.bfloat16, device=device)
    rows = [row for recompute in (False, True) for row in measure(models, x_MK, recompute, rounds)]
    report.console().print(table(rows, f"{layers} layers of {model}, {tokens} tokens, {device}"))
    if out is not None:
        shape = {"model": model, "layers": layers, "tokens": tokens}
        report.write_run(out, "benchmarks.qat", device, {**shape, "rows": rows})


def layers_of(model: str, layers: int, device: torch.device) -> nn.Module:
    """A model's layers with random weights, in BF16; its vocabulary is cut, since no token is looked up."""
    from transformers import AutoConfig, AutoModel

    config = {**get_model(model).cut(layers).config(), "vocab_size": 8}
    torch.manual_seed(0)
    with device:
        made = AutoModel.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16)
    return made.train()


def fake_quantized(plain: nn.Module, scheme: str) -> nn.Module:
    """A copy that computes with fake-quantized weights."""
    made = copy.deepcopy(plain)
    apply_fake_quantization(made, scheme)
    return made


def measure(models: Mapping[str, nn.Module], x_MK: torch.Tensor, recompute: bool, rounds: int) -> list[dict]:
    """A row for each model, in `models`' order; the plain one is among them."""
    for model in models.values():
        (model.gradient_checkpointing_enable if recompute else model.gradient_checkpointing_disable)()
    counts = {name: counted(model, x_MK) for name, model in models.items()}
    taken = times({name: step_of(model, x_MK) for name, model in models.items()}, x_MK.device, rounds)
    return [
        {
            "qat": name,
            "recompute": recompute,
            "ms": summary(taken[name]),
            "samples_ms": taken[name],
            "of_plain": median(own / plain for own, plain in zip(taken[name], taken[PLAIN], strict=True)),
            **counts[name],
            "parameter_bytes": sum(parameter.nbytes for parameter in models[name].parameters()),
        }
        for name in models
    ]


def times(steps: Mapping[str, Callable[[], None]], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each step, a number a round."""
    if device.type != "cpu":
        return {name: samples.ms for name, samples in compare(steps, device, rounds).items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds):
        for name in rotated(list(steps), turn):
            start = time.process_time()
            steps[name]()
            taken[name].append(1e3 * (time.process_time() - start))
    return taken


def step_of(model: nn.Module, x_MK: torch.Tensor) -> Callable[[], None]:
    """Forward and backward; gradients are thrown away."""

    def step() -> None:
        model(inputs_embeds=x_MK, use_cache=False).last_hidden_state.float().square().mean().backward()
        model.zero_grad(set_to_none=True)

    return step


class Operators(TorchDispatchMode):
    """Counts what torch starts inside, views aside."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


def counted(model: nn.Module, x_MK: torch.Tensor) -> dict[str, int]:
    """Operators of a step, and the bytes that its forward pass keeps beyond the parameters and its input."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), x_MK)}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    step = step_of(model, x_MK)
    step()  # what is made once is made here
    with Operators() as operators:
        step()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(inputs_embeds=x_MK, use_cache=False).last_hidden_state.float().square().mean()
    del loss
    return {"operators": operators.count, "kept_bytes": sum(kept.values())}


def table(rows: list[dict], title: str) -> Table:
    """One line a row."""
    made = Table(title=f"A training step, forward and backward: {title}")
    for heading in ("QAT", "checkpointing", "ms", "low - high", "x plain", "operators", "kept MiB"):
        made.add_column(heading, justify="left" if heading in ("QAT", "checkpointing") else "right")
    for row in rows:
        spread = f"{row['ms']['low']:.1f} - {row['ms']['high']:.1f}"
        counts = str(row["operators"]), f"{row['kept_bytes'] / report.MIB:.1f}"
        times = f"{row['ms']['median']:.1f}", spread, f"{row['of_plain']:.2f}"
        made.add_row(row["qat"], "on" if row["recompute"] else "off", *times, *counts)
    return made


if __name__ == "__main__":
    app()
