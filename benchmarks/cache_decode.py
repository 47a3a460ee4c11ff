"""python -m benchmarks.cache_decode: a layer's decode attention over an int8 cache beside vLLM's, by context and batch.

Times are those inside a CUDA graph of several layers, whose caches together are far larger than the L2 cache; the
methods' order is another one in every round. Needs torch and Triton; vLLM's methods are left out where there are none.
The bar: at most 1.5 times the time of the cache's bytes at 4.27 TB/s (what a copy reaches on an H200).
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer

from ascend_quant.kernels import cache_pages
from ascend_quant.oracle import cache as oracle
from benchmarks.cache_methods import HEAD, SCALE, FlashAttention, Ours, Shape, Stock, inputs
from benchmarks.refit import choices
from benchmarks.rollout import batches_of, contexts_of
from benchmarks.timing import rotated

COPY = 4.27e12  # bytes a second
COLD = 250e6  # bytes of caches that a graph reads, at least
MOST_LAYERS, ROUNDS = 12, 4
ROOM = 10.9e9  # bytes of an int8 pool; BF16's has twice as many
TILES = (  # tokens at once, programs a multiprocessor, warps, stages, whether codes are multiplied as they are
    (64, 2, 4, 4),
    (64, 3, 4, 3),
    (64, 3, 4, 4),
    (128, 2, 8, 3),
    (128, 1, 8, 4),
    (128, 2, 4, 3),
    (32, 4, 4, 4),
    (32, 10, 1, 3),
    (128, 3, 4, 3, True),
    (64, 4, 2, 4, True),
    (64, 6, 2, 3, True),
    (64, 8, 2, 2, True),
    (64, 4, 1, 4, True),
    (32, 8, 1, 3, True),
    (32, 8, 2, 3, True),
    (32, 10, 2, 3, True),
)
WORST, WORST_CODES = 0.02, 0.001  # errors: weights are BF16's, or of 16 bits
OF_CODES = tuple(tiles for tiles in TILES if len(tiles) > 4)
HEADS = {"4": (4, 28), "8": (8, 40), "4x8": (4, 32)}


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Asked:
    """What is to be measured.

    Attributes:
        heads: names in HEADS.
        page: tokens of a page of ours.
        seconds: after which no further shape is begun.
        only: what the names of the methods beside ours have in them.
    """

    heads: list[str]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    page: int
    seconds: float
    only: str


@app.command()
def main(
    device: Annotated[str, typer.Option(help="cuda; cpu with TRITON_INTERPRET=1: a try.")] = "cuda",
    heads: Annotated[str, typer.Option(help="Heads of keys (and queries), with commas.")] = ",".join(HEADS),
    contexts: Annotated[str, typer.Option(help="Tokens that sequences hold, with commas.")] = "1024,8192,30720",
    batches: Annotated[str, typer.Option(help="Sequences, with commas.")] = "8,32,64,160",
    page: Annotated[int, typer.Option(min=16, help="Tokens of a page of ours.")] = 128,
    seconds: Annotated[float, typer.Option(min=1, help="After these no further shape is begun.")] = 110,
    only: Annotated[str, typer.Option(help="Methods beside ours whose names have this.")] = "",
    out: Annotated[Path | None, typer.Option(help="Where every sample goes.")] = None,
) -> None:
    """Check the kernels against the oracle, then time a layer's decode attention over an int8 cache beside vLLM's."""
    begun = time.perf_counter()
    choices("--device", device, ("cuda", "cpu"))
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("there is no GPU: TRITON_INTERPRET=1 and cpu try it out", param_hint="--device")
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise typer.BadParameter("cpu: set TRITON_INTERPRET=1, Triton compiles for GPUs alone", param_hint="--device")
    sizes = contexts_of(contexts, "--contexts"), batches_of(batches, "--batches")
    asked = Asked(choices("--heads", heads, tuple(HEADS)), *sizes, page, seconds, only)
    where = torch.device(device)
    found = {"device": name_of(where), "torch": torch.__version__, "page": page, "copy": COPY}
    with torch.no_grad():
        found["check"] = check(where, page)
        print(f"largest error against the oracle: {found['check']}", flush=True)
        if device == "cuda":
            found["writer"] = writer_times(where, page)
            print(f"writer, microseconds by tokens: {found['writer']}", flush=True)
        found["rows"] = measure(asked, where, begun)
    print(f"\n{found['device']}; ratio = time / (bytes / 4.27 TB/s); {time.perf_counter() - begun:.0f} s")
    print(table(found["rows"]), flush=True)
    if out is not None:
        out.write_text(json.dumps(found, indent=1))


def name_of(device: torch.device) -> str:
    """The GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu (Triton's interpreter)"


def check(device: torch.device, page: int) -> dict[str, float]:
    """The attention's largest errors, by head counts; ends where the writer's bytes are not the oracle's."""
    from ascend_quant.kernels.triton_cache import write
    from ascend_quant.kernels.triton_decode import Decoder, DecodeTiles

    found, processors = {}, 132 if device.type == "cuda" else 2
    lengths = [1, 700, 64, 0, 333, 9000] if device.type == "cuda" else [1, 130]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16  # the interpreter cuts BF16 off
    sizes = [(4, 28), (8, 40), (1, 16)] if device.type == "cuda" else [(2, 14)]
    for heads, query_heads in sizes:
        layout = cache_pages.Layout(page, heads, HEAD)
        needed = [-(-length // page) for length in lengths]
        blocks = torch.randperm(sum(needed) + 2).int()
        cache = cache_pages.empty(len(blocks), layout, device)
        cache_pages.views(cache).scales.fill_(torch.nan)
        rows = blocks[: sum(needed)].split(needed)
        table_of = torch.zeros(len(lengths), max(needed), dtype=torch.int32)
        keys, values = [], []
        for row, (length, mine) in enumerate(zip(lengths, rows, strict=True)):
            table_of[row, : len(mine)] = mine
            k, v = (torch.randn(length, heads, HEAD, device=device).to(dtype) for _ in range(2))
            place = torch.arange(length)
            slots = (mine.long()[place // page] * page + place % page).to(device)
            write(k, v, cache, slots)
            for x, into in ((k, keys), (v, values)):
                into.append(oracle.quantize_cache(x))
            views = cache_pages.views(cache)
            at = (slots // page, slice(None), slots % page)
            same = torch.equal(views.keys[at], keys[-1][0]) and torch.equal(views.scales[:, 1][at], values[-1][1])
            if not same:
                raise SystemExit(f"{heads} heads, {length} tokens: the writer's bytes are not the oracle's")
        q = torch.randn(len(lengths), query_heads, HEAD, device=device).to(dtype)
        counts = torch.tensor(lengths, dtype=torch.int32, device=device)
        real = [[oracle.dequantize_cache(*one) for one in each] for each in (keys, values)]
        expected = oracle.decode_attention(q, *real, SCALE)
        for tiles in TILES if device.type == "cuda" and heads > 1 else (*TILES[:2], *OF_CODES[: heads > 1]):
            run = Decoder(len(lengths), query_heads, layout, device, DecodeTiles(*tiles), processors)
            out = torch.full(q.shape, torch.nan, device=device)  # float32: errors are not those of its rounding
            run(q, cache, table_of.to(device), counts, run.plan(counts), SCALE, out)
            error = float((out.double() - expected).abs().max())
            if not error < (WORST_CODES if len(tiles) > 4 else WORST):
                print(f"FAULT: {tiles}, {heads} heads: error {error}", flush=True)
            found[f"{query_heads}/{heads} {tiles}"] = float(f"{error:.2g}")
    return found


def writer_times(device: torch.device, page: int) -> dict[str, float]:
    """Of 4 heads."""
    from ascend_quant.kernels.triton_cache import write

    found = {}
    layout = cache_pages.Layout(page, 4, HEAD)
    cache = cache_pages.empty(16384 // page + 1, layout, device)
    for tokens in (8, 160, 8192):
        qkv = torch.randn(tokens, 36, HEAD, device=device, dtype=torch.bfloat16)
        slots = torch.randperm(16384, device=device)[:tokens] if tokens < 1000 else torch.arange(tokens, device=device)
        calls = [lambda qkv=qkv, slots=slots: write(qkv[:, 28:32], qkv[:, 32:], cache, slots)] * 20
        found[str(tokens)] = round(1e6 * seconds_of(Graph(calls), 3) / len(calls), 2)
    return found


class Graph:
    """All calls in one CUDA graph, which holds what they read."""

    def __init__(self, calls: list):
        self.calls = calls
        calls[0]()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for call in calls:
                call()


def seconds_of(graph: Graph, replays: int) -> float:
    """Of one replay, the median."""
    samples = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.graph.replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end))
    return median(samples) / 1e3


def measure(given: Asked, device: torch.device, begun: float) -> list[dict]:
    """A row for each shape."""
    if device.type != "cuda":
        shape = Shape(2, 4, 40, 3, True)
        ours = Ours(1 << 22, given.page, device)
        given_in = inputs(shape, device, torch.float16)
        ours_calls(shape, ours, given_in, ours.cache(2), 2, TILES[0], 2)[0]()
        return []
    ours, others = pools(given, device)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    rows = []
    for heads, query_heads in (HEADS[name] for name in given.heads):
        caches = {method.name: method.cache(heads) for method in (ours, *others)}
        shapes = [
            Shape(heads, query_heads, context, batch, ragged)
            for context in given.contexts
            for batch in given.batches
            for ragged in (False, True)
        ]
        for shape in shapes:
            if shape.tokens * heads * ours.token_bytes > ROOM:
                continue
            if time.perf_counter() - begun > given.seconds:
                print(f"out of time before {shape}", flush=True)
                return rows
            rows.append(row_of(shape, ours, others, caches, processors, device))
            print(line_of(rows[-1]), flush=True)
    return rows


def pools(given: Asked, device: torch.device):
    """Ours, and vLLM's as far as they can be imported."""
    ours, others = Ours(int(ROOM), given.page, device), []
    makers = {
        "FA3 bf16": lambda: FlashAttention(int(2 * ROOM), False, device),
        "FA3 fp8": lambda: FlashAttention(int(ROOM), True, device),
        "int8 (vLLM)": lambda: Stock(int(ROOM), device),
    }
    for name, make in makers.items():
        if given.only not in name:
            continue
        try:
            others.append(make())
        except (ImportError, OSError, AttributeError) as error:
            print(f"without {name}: {type(error).__name__}: {error}", flush=True)
    return ours, others


def ours_calls(shape, ours, given, cache, copies, tiles, processors) -> list:
    from ascend_quant.kernels.triton_decode import DecodeTiles

    return ours.calls(shape, given, cache, copies, DecodeTiles(*tiles), processors)


def row_of(shape: Shape, ours, others, caches: dict, processors: int, device: torch.device) -> dict:
    """All methods at one shape; ours with its fastest tiles."""
    given = inputs(shape, device)
    layer_bytes = shape.tokens * shape.heads * ours.token_bytes
    copies = int(max(1, min(MOST_LAYERS, -(-COLD // layer_bytes), ROOM // layer_bytes)))
    search, graphs, problems = {}, {}, {}
    for tiles in TILES:
        try:
            graph = Graph(ours_calls(shape, ours, given, caches[ours.name], copies, tiles, processors))
            seconds_of(graph, 1)
            search[str(tiles)] = seconds_of(graph, 2) / copies
            if search[str(tiles)] == min(search.values()):
                graphs[ours.name] = graph
        except Exception as error:
            problems[str(tiles)] = f"{type(error).__name__}: {str(error)[:200]}"
    for method in others:
        try:
            graphs[method.name] = Graph(method.calls(shape, given, caches[method.name], copies))
        except Exception as error:
            problems[method.name] = f"{type(error).__name__}: {str(error)[:200]}"
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS):
        for name in rotated(list(graphs), turn):
            samples[name].append(seconds_of(graphs[name], 1) / copies)
    times = {name: median(each) for name, each in samples.items()}
    bytes_of = {m.name: shape.tokens * shape.heads * m.token_bytes for m in (ours, *others)}
    return {
        **shape._asdict(),
        "longest": given.longest,
        "layers": copies,
        "us": {name: 1e6 * one for name, one in times.items()},
        "samples_us": {name: [1e6 * one for one in each] for name, each in samples.items()},
        "gb_s": {name: bytes_of[name] / one / 1e9 for name, one in times.items()},
        "ratio": {name: one / (bytes_of[name] / COPY) for name, one in times.items()},
        "tiles": min(search, key=search.get) if search else None,
        "search_us": {name: 1e6 * one for name, one in search.items()},
        "problems": problems,
    }


def line_of(row: dict) -> str:
    search = "  ".join(f"{name}={us:.0f}" for name, us in row["search_us"].items())
    return f"{short(row)}  {search}" + (f"  PROBLEMS {row['problems']}" if row["problems"] else "")


def short(row: dict) -> str:
    kind = "ragged" if row["ragged"] else "equal"
    return f"{row['query_heads']:>2}/{row['heads']} {row['context']:>5} x {row['batch']:>3} {kind:<6}"


def table(rows: list[dict]) -> str:
    """Ours and each other: microseconds, GB/s and the ratio to the bytes' time; how often faster ours is."""
    lines = ["heads context x batch     tiles                      " + "method: us (GB/s, ratio) [times ours]"]
    for row in rows:
        mine = row["us"].get(Ours.name)
        cells = [
            f"{name}: {us:.0f} ({row['gb_s'][name]:.0f}, {row['ratio'][name]:.2f})"
            + (f" [{us / mine:.2f}]" if mine and name != Ours.name else "")
            for name, us in row["us"].items()
        ]
        lines.append(f"{short(row)}  {row['tiles']!s:<26} {'  '.join(cells)}")
    return "\n".join(lines)


if __name__ == "__main__":
    app()
