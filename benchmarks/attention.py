"""python -m benchmarks.attention: a layer's attention over packed sequences, forward and backward, name beside name.

What a model hands to it is made once, as in a model: queries, keys, values of a layer, and the mask that transformers
builds for the name (the dense one of `sdpa` is made once a forward pass, so it is not timed, but its memory counts).
The bar: at 16k tokens of several sequences at least 5 times as fast as sdpa, which has a dense mask then.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from benchmarks import report
from benchmarks.timing import compare, once, summary

HEADS, KEY_VALUE_HEADS, HEAD_DIM = 28, 4, 128  # Qwen2.5-7B
TOKENS, LENGTHS = "4096,8192,16384,32768", "512,2048,32768"
SMALL_TOKENS, SMALL_LENGTHS = "256,512", "64,512"
BAR = {"tokens": 16384, "times": 5.0}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    tokens: Annotated[str, typer.Option(help="Of a packed batch, with commas.")] = TOKENS,
    lengths: Annotated[str, typer.Option(help="Of its sequences, with commas; none is longer than a batch.")] = LENGTHS,
    small: Annotated[bool, typer.Option("--small", help=f"{SMALL_TOKENS} tokens and four heads: a try.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="How often each attention is timed.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Where every sample goes.")] = None,
) -> None:
    """Time packed attention beside the dense mask, and flash-attn where it is installed."""
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("there is no GPU: --device cpu --small tries it out", param_hint="--device")
    sizes = (SMALL_TOKENS, SMALL_LENGTHS) if small else (tokens, lengths)
    all_tokens, all_lengths = ([int(one) for one in text.split(",")] for text in sizes)
    heads = (4, 2) if small else (HEADS, KEY_VALUE_HEADS)
    shapes = sorted({(total, min(total, length)) for total in all_tokens for length in all_lengths})
    rows = [row for total, length in shapes for row in measure(device, total, length, heads, rounds)]
    console = report.console()
    console.print(table(rows))
    for row in rows:
        masked = row["length"] < row["tokens"] == BAR["tokens"]
        if masked and row["times_sdpa"] and row["attention"] != "sdpa":
            met = report.in_words(row["times_sdpa"] >= BAR["times"] if device == "cuda" else None)
            console.print(
                f"{row['attention']}, sequences of {row['length']}: {row['times_sdpa']:.1f} times sdpa's speed: {met}"
            )
    if out is not None:
        report.write_run(out, "benchmarks.attention", device, {"heads": heads, "bar": BAR, "rows": rows})


def measure(device: str, tokens: int, length: int, heads: tuple[int, int], rounds: int) -> list[dict]:
    """A row for each attention; one that does not fit into memory has no figures."""
    names = ["torch_varlen", "sdpa", *(["flash_attention_2"] if find_spec("flash_attn") else [])]
    where, calls, peaks = torch.device(device), {}, {}
    for name in names:
        try:
            calls[name], mask_bytes = layer(name, where, tokens, length, heads)
            calls[name]()
            peaks[name] = (once(calls[name], where).extra_bytes or 0) + mask_bytes
        except torch.OutOfMemoryError:
            calls.pop(name, None)
    samples = {name: one.ms for name, one in compare(calls, where, rounds).items()}
    times = {name: summary(ms) for name, ms in samples.items()}
    usual = times.get("sdpa", {}).get("median")
    flop = 3.5 * 2 * heads[0] * HEAD_DIM * tokens * length  # causal; backward is 2.5 times forward
    return [
        {
            "tokens": tokens,
            "length": length,
            "attention": name,
            "ms": times.get(name),
            "samples_ms": samples.get(name, []),
            "extra_bytes": peaks.get(name) if device == "cuda" else None,
            "tflops": flop / times[name]["median"] / 1e9 if name in times else None,
            "times_sdpa": usual / times[name]["median"] if usual and name in times else None,
        }
        for name in names
    ]


def layer(
    name: str, device: torch.device, tokens: int, length: int, heads: tuple[int, int]
) -> tuple[Callable[[], None], int]:
    """Forward and backward of one layer's attention, and the bytes of its mask; the last sequence may be shorter."""
    from transformers import AttentionInterface, Qwen2Config
    from transformers.masking_utils import create_causal_mask
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

    from ascend_quant.integrations.verl import packed_attention  # noqa: F401  registers the name

    config = Qwen2Config(
        hidden_size=heads[0] * HEAD_DIM,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        num_hidden_layers=1,
        attn_implementation=name,
    )
    with torch.device("meta"):
        module = Qwen2Attention(config, 0).bfloat16()  # its projections are not used
    torch.manual_seed(0)
    make = {"device": device, "dtype": torch.bfloat16}
    q, k, v = (torch.randn(1, n, tokens, HEAD_DIM, **make, requires_grad=True) for n in (heads[0], *heads[1:] * 2))
    grad = torch.randn(1, tokens, heads[0], HEAD_DIM, **make)
    positions = (torch.arange(tokens, device=device) % length).unsqueeze(0)
    embeds = torch.empty(1, tokens, 1, **make)
    mask = create_causal_mask(config, embeds, attention_mask=None, past_key_values=None, position_ids=positions)
    attention = AttentionInterface()[name]

    def run() -> None:
        out, _ = attention(module, q, k, v, mask, scaling=HEAD_DIM**-0.5, position_ids=positions)
        out.backward(grad)
        q.grad = k.grad = v.grad = None

    return run, 0 if mask is None else mask.nbytes


def table(rows: list[dict]) -> Table:
    made = Table(title="One layer's attention over packed sequences, forward and backward: medians")
    for heading in ("tokens", "of each", "attention", "ms", "low - high", "TFLOP/s", "x sdpa", "extra MiB"):
        made.add_column(heading, justify="left" if heading == "attention" else "right")
    for row in rows:
        first = str(row["tokens"]), str(row["length"]), row["attention"]
        if row["ms"] is None:
            made.add_row(*first, "out of memory", "-", "-", "-", "-")
            continue
        spread = f"{row['ms']['low']:.2f} - {row['ms']['high']:.2f}"
        against = "-" if row["times_sdpa"] is None else f"{row['times_sdpa']:.2f}"
        memory = "-" if row["extra_bytes"] is None else f"{row['extra_bytes'] / report.MIB:.0f}"
        made.add_row(*first, f"{row['ms']['median']:.2f}", spread, f"{row['tflops']:.2f}", against, memory)
    return made


if __name__ == "__main__":
    app()
