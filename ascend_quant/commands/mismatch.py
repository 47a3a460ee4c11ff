"""`ascend-quant mismatch`: before training, how far the quantized policy is from the BF16 one."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ascend_quant.exits import ABOVE, FAILED, WRONG_USE, fail
from ascend_quant.schemes import SCHEMES
from ascend_quant.whole_file import why_no_file, write_whole

QUANTIZED = ", ".join(name for name, scheme in SCHEMES.items() if scheme.quantized)


def mismatch(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a BF16 model.")],
    scheme: Annotated[str, typer.Option(help=f"What the weights become: {QUANTIZED}; bf16 for the noise floor alone.")],
    prompts: Annotated[
        Path | None, typer.Option(help="A text file (a prompt a line), or .jsonl or .parquet with a column `prompt`.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens sampled a prompt, at most.")] = 128,
    tokens: Annotated[
        int, typer.Option(help="Maximum total number of sampled tokens; prompts beyond it are dropped.")
    ] = 16384,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A layer that keeps its dtype: a name, or re:PATTERN. Repeatable.")
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="A profile: what `ascend-quant profile -o` was given.")] = None,
    threshold: Annotated[float, typer.Option(help="Where importance weights are clipped.")] = 2.0,
    length: Annotated[
        int | None, typer.Option(help="Tokens of a recipe's responses: what would the importance weights leave there?")
    ] = None,
    try_suggestion: Annotated[
        bool, typer.Option(help="Start a third engine with what is suggested, if anything is, and measure the KL.")
    ] = True,
    kv_cache: Annotated[
        str, typer.Option(help="The quantized engine's KV cache: auto (BF16), int8 or fp8; splits the KL by its parts.")
    ] = "auto",
    bucket: Annotated[
        list[int] | None,
        typer.Option(help="A position at which a range of the split ends; repeatable.  [default: 1024 8192 30720]"),
    ] = None,
    emulate_cache: Annotated[
        bool,
        typer.Option("--emulate-cache", help="Round keys and values in transformers' attention, not in an engine."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seeds the sampling.")] = 0,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    max_model_len: Annotated[
        int | None, typer.Option(help="Maximum model length of both engines.  [default: what the prompts need]")
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None,
        typer.Option(help="As in vLLM, for each engine.  [default: vLLM's; scoring needs 4 GiB beside it]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the report there, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="In the JSON: all tokens and their log-probabilities.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG there.")] = None,
    fail_above: Annotated[float | None, typer.Option(help="Exit status 3 if the KL (k3) is above this.")] = None,
) -> None:
    """How far is the quantized policy from the BF16 one, and which layers are to blame?

    A quantized engine samples, a BF16 engine scores the same tokens.

    Exit status: 0; 1 if an engine failed; 2 for wrong use; 3 if the KL is above --fail-above.
    """
    from rich.console import Console

    from ascend_quant.mismatch import report
    from ascend_quant.mismatch.engines import EngineFailed
    from ascend_quant.mismatch.plot import draw
    from ascend_quant.mismatch.positions import EDGES
    from ascend_quant.mismatch.prompts import PromptError
    from ascend_quant.mismatch.settings import OptionError, Settings
    from ascend_quant.mismatch.tokens import ModelError
    from ascend_quant.schemes import UnknownScheme

    console = Console(stderr=as_json)
    if raw and out is None and not as_json:
        fail("--raw: goes into the report; give --out FILE or --json as well", WRONG_USE)
    for option, path in (("--out", out), ("--plot", plot)):
        if path is not None and (said := why_no_file(path)):
            fail(f"{option} {said}", WRONG_USE)
    if fail_above is not None and fail_above != fail_above:  # NaN, which nothing is above
        fail("--fail-above nan: a number is wanted", WRONG_USE)
    try:
        settings = Settings(
            model, scheme, prompts, tuple(ignore or ()), profile, max_tokens, tokens, threshold, seed, tp,
            max_model_len, gpu_memory_utilization, length, try_suggestion, kv_cache,
            tuple(bucket or EDGES), emulate_cache,
        )  # fmt: skip
        found = _measured(settings, Console(stderr=True))
    except (UnknownScheme, OptionError, ModelError, PromptError) as error:
        fail(str(error), WRONG_USE)
    except EngineFailed as error:
        fail(str(error), FAILED)
    report.show(found, console)
    try:
        text = json.dumps({key: value for key, value in found.items() if raw or key != "raw"}, indent=1)
        if as_json:
            typer.echo(text)
        if out is not None:
            write_whole(out, text + "\n")
        if plot is not None:
            draw(found, plot)
    except OSError as error:
        fail(f"the report cannot be written: {error}", FAILED)
    if fail_above is not None and found["mismatch"]["k3_kl"] > fail_above:
        fail(f"KL (k3) {found['mismatch']['k3_kl']:.3g} is above --fail-above {fail_above:g}", ABOVE)


def _measured(settings: Any, console: Any) -> dict[str, Any]:
    """`measure`, with a bar for each thing that is going on."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from ascend_quant.mismatch.measure import measure

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        bars = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done)

        return measure(settings, on_progress)
