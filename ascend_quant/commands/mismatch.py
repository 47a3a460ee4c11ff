"""`ascend-quant mismatch`: before training, how far the quantized policy is from the BF16 one."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ascend_quant.schemes import SCHEMES

QUANTIZED = ", ".join(name for name, scheme in SCHEMES.items() if scheme.quantized)
FAILED, MISUSED, ABOVE = 1, 2, 3


def mismatch(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a BF16 model.")],
    scheme: Annotated[str, typer.Option(help=f"What the weights become: {QUANTIZED}; bf16 for the noise floor alone.")],
    prompts: Annotated[
        Path | None, typer.Option(help="A text file (a prompt a line), or .jsonl or .parquet with a column `prompt`.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens sampled a prompt, at most.")] = 128,
    tokens: Annotated[int, typer.Option(help="Tokens sampled in all, at most: prompts are left out.")] = 16384,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A layer that keeps its dtype: a name, or re:PATTERN. Repeatable.")
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="A profile made with `ascend-quant profile`.")] = None,
    threshold: Annotated[float, typer.Option(help="Where importance weights are clipped.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Seeds the sampling.")] = 0,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    max_model_len: Annotated[int | None, typer.Option(help="Of the engines.  [default: what the prompts need]")] = None,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Of the engines.  [default: vLLM's; scoring needs 4 GiB beside it]")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report there; - is stdout.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="With --json: all tokens and their log-probabilities.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG there.")] = None,
    fail_above: Annotated[float | None, typer.Option(help="End with 3 if the KL (k3) is above this.")] = None,
) -> None:
    """How far is the quantized policy from the BF16 one, and which layers are to blame?

    A quantized engine samples, a BF16 engine scores the same tokens. Ends with 0; 1 if an engine failed; 2 if the
    options are wrong; 3 with --fail-above.
    """
    from rich.console import Console

    from ascend_quant.mismatch import measure, report
    from ascend_quant.mismatch.engines import EngineFailed
    from ascend_quant.mismatch.plot import draw
    from ascend_quant.mismatch.prompts import PromptError
    from ascend_quant.mismatch.tokens import ModelError
    from ascend_quant.schemes import UnknownScheme

    to_stdout = json_file == Path("-")
    console = Console(stderr=to_stdout)
    if raw and json_file is None:
        stop("--raw: goes into the report; give --json FILE as well", MISUSED)
    for option, path in (("--json", None if to_stdout else json_file), ("--plot", plot)):
        if path is not None and not path.absolute().parent.is_dir():
            stop(f"{option} {path}: there is no folder {path.absolute().parent}", MISUSED)
    try:
        settings = measure.Settings(
            model, scheme, prompts, tuple(ignore or ()), profile, max_tokens, tokens, threshold, seed, tp,
            max_model_len, gpu_memory_utilization,
        )  # fmt: skip
        found = _measured(settings, Console(stderr=True))
    except (UnknownScheme, measure.OptionError, ModelError, PromptError) as error:
        stop(str(error), MISUSED)
    except EngineFailed as error:
        stop(str(error), FAILED)
    report.show(found, console)
    if plot is not None:
        draw(found, plot)
    if json_file is not None:
        text = json.dumps({key: value for key, value in found.items() if raw or key != "raw"}, indent=1)
        typer.echo(text) if to_stdout else json_file.write_text(text + "\n")
    if fail_above is not None and found["mismatch"]["k3_kl"] > fail_above:
        stop(f"KL (k3) {found['mismatch']['k3_kl']:.3g} is above --fail-above {fail_above:g}", ABOVE)


def _measured(settings: Any, console: Any) -> dict[str, Any]:
    """`measure`, with a bar for each thing that is going on."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from ascend_quant.mismatch.measure import measure

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        bars = {}

        def told(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done)

        return measure(settings, told)


def stop(message: str, code: int) -> None:
    """End with a message on stderr."""
    typer.echo(message, err=True)
    raise typer.Exit(code)
