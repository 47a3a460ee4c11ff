"""`ascend-quant mismatch`: measure, before training, how far the quantized policy is from the BF16 one."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.files.documents import BadDocument
from ascend_quant.schemes import SCHEMES
from ascend_quant.schemes.registry import KV_CACHES
from ascend_quant.terminal.exits import ABOVE, FAILED, WRONG_USE, fail

QUANTIZED = ", ".join(name for name, scheme in SCHEMES.items() if scheme.quantized)


def mismatch(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a BF16 model.")],
    scheme: Annotated[str, typer.Option(help=f"Scheme of the weights: {QUANTIZED}; bf16 measures the noise floor.")],
    prompts: Annotated[
        Path | None,
        typer.Option(help="Text file with one prompt per line, or .jsonl or .parquet with a `prompt` column."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens sampled per prompt.")] = 128,
    tokens: Annotated[
        int, typer.Option(min=1, help="Maximum total number of sampled tokens; prompts beyond it are dropped.")
    ] = 16384,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Layer to leave unquantized: a name, or re:PATTERN. Repeatable.")
    ] = None,
    kv_cache: Annotated[
        str,
        typer.Option(
            help="KV cache of the quantized engine: auto (BF16), int8 or fp8; its KL is also measured separately."
        ),
    ] = "auto",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel size.")] = 1,
    gpu_memory_utilization: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Same as vLLM's; scoring needs 4 GiB more.  [default: vLLM's]"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, with every token; the tables go to stderr.")
    ] = False,
    fail_above: Annotated[float | None, typer.Option(help="Exit status 3 if the KL (k3) is above this.")] = None,
) -> None:
    """Measure the KL between a quantized policy and the BF16 one, by token, position and layer.

    A quantized engine samples, and a BF16 engine scores the same tokens.

    Exit status: 0 on success; 1 if an engine failed; 2 for wrong usage; 3 if the KL is above --fail-above.
    """
    from rich.console import Console

    from ascend_quant.mismatch import report
    from ascend_quant.mismatch.engines import EngineFailed
    from ascend_quant.mismatch.measure import Settings, measure
    from ascend_quant.profile.checkpoints import BadCheckpoint
    from ascend_quant.schemes import UnknownScheme

    if kv_cache not in KV_CACHES:
        fail(f"--kv-cache {kv_cache!r:.80}: choose from {', '.join(KV_CACHES)}", WRONG_USE)
    settings = Settings(
        model, scheme, prompts, tuple(ignore or ()), kv_cache, max_tokens, tokens, tp, gpu_memory_utilization
    )
    try:
        found = measure(settings)
    except (UnknownScheme, BadCheckpoint, BadDocument) as error:
        fail(str(error), WRONG_USE)
    except EngineFailed as error:
        fail(str(error), FAILED)
    report.show(found, Console(stderr=as_json))
    if as_json:
        typer.echo(json.dumps(found))
    if fail_above is not None and found["mismatch"]["k3_kl"] > fail_above:
        fail(f"KL (k3) {found['mismatch']['k3_kl']:.3g} is above --fail-above {fail_above:g}", ABOVE)
