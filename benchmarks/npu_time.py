"""How long a refit takes on an A2 or A3, on paper: counted bytes, calls and waits, a published bandwidth, assumptions.

`python -m benchmarks.npu_time` writes the table into docs/npu_time.md and docs/npu_time.zh.md, between two comments.
`python -m benchmarks.npu_time COUNTS.json` prints it for other counts, as NPU_COST=FILE ./run.sh test npu writes.
Nothing of this was measured on a device.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import Model, get_model
from launch.generated import is_chinese, put_between

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "npu_time.md", ROOT / "docs" / "npu_time.zh.md")
COLUMNS = ("model", "ranks", "path", "B/element", "calls", "views", "waits", "A2, s", "A3, s")
COLUMNS += ("with the proof, s", "copies of its BF16")
COLUMNS_CHINESE = ("模型", "rank 数", "路径", "字节/元素", "调用", "视图", "等待", "A2，秒", "A3，秒")
COLUMNS_CHINESE += ("含传输校验，秒", "相当于几次 BF16 拷贝")
START, END = "<!-- times: written by python -m benchmarks.npu_time -->", "<!-- end of times -->"
QWEN3_235B = Model("qwen3-235b-a22b", 4096, 94, 64, 4, 128, 12288, 151936, 1e-6, 40960, 128, 8, 1536)
COPY_BYTES = 4  # of an element in BF16: read and written
BANDWIDTH = 1.6e12  # of an A2, and of a die of an A3: Ascend/msmodeling, tensor_cast/device.py
FEW_WAITS = 2  # with more of them the host does not run ahead of the device


@dataclass(frozen=True)
class Costs:
    """What is assumed.

    Attributes:
        fraction: of the published bandwidth that the operators reach.
        call, view, wait, ai_cpu: seconds of the host for an operator's call and for a view, of both for a wait, and of
            the device for an operator on its AI CPU.
    """

    fraction: float
    call: float
    view: float
    wait: float
    ai_cpu: float


FAST, SLOW = Costs(0.89, 10e-6, 1e-6, 30e-6, 100e-6), Costs(0.5, 25e-6, 3e-6, 100e-6, 500e-6)


@dataclass(frozen=True)
class Proof:
    """What the proof adds to a refit: every rank digests all that it is sent.

    Attributes:
        bytes: for each element that is sent.
    """

    bytes: float = 0.0
    calls: int = 0
    views: int = 0


@dataclass(frozen=True)
class Counts:
    """What one rank does in one refit without the proof.

    Attributes:
        path: today's chain, or the fused one.
        elements: of the weights that this rank keeps; `sent` are those of the whole model.
        bytes: read and written for each of its elements, with what is hidden in operators.
        ai_cpu: operators on the AI CPU.
    """

    model: str
    ranks: int
    path: str
    elements: int
    sent: int
    bytes: float
    calls: int
    views: int
    waits: int
    ai_cpu: int
    proof: Proof = Proof()

    def seconds(self, bandwidth: float, costs: Costs, proof: bool = False) -> float:
        """Of one refit."""
        more = self.proof if proof else Proof()
        moved = self.elements * self.bytes + self.sent * more.bytes
        device = moved / (bandwidth * costs.fraction) + self.ai_cpu * costs.ai_cpu
        host = (self.calls + more.calls) * costs.call + (self.views + more.views) * costs.view
        both = max(device, host) if self.waits <= FEW_WAITS else device + host
        return both + self.waits * costs.wait

    def copies(self, bandwidth: float, costs: Costs) -> float:
        """How many copies of this rank's weights in BF16 the device makes in that time, at the same fraction."""
        return self.seconds(bandwidth, costs) / (self.elements * COPY_BYTES / (bandwidth * costs.fraction))


def elements_of(model: Model) -> int:
    return sum(math.prod(shape) for shape in model.shapes().values())


def counted() -> list[Counts]:
    """What this page is made of: counted on tensors without memory, of the true sizes, in FRACTAL_NZ.

    `chain`: operator by operator, as refits were until 2026-11-23. `fused`: docs/npu_cost.md. 235B was
    not counted: a rank's calls go with the elements that it keeps in the chain, and with the layers in the fused path;
    the proof's go with the number of tensors.
    """
    small, experts, large = get_model("qwen2.5-7b"), get_model("qwen3-30b-a3b"), QWEN3_235B
    kept = {model.name: elements_of(model) for model in (small, experts, large)}
    share = kept[large.name] / 8 / kept[experts.name]
    layers, tensors = large.layers / experts.layers, tensors_of(large) / tensors_of(experts)
    chain = Proof(12.5, 416_628, 397_732)
    fused = Proof(26.23 + 2.26 - 20.15 - 2.22, 12_075 - 9_194, 27_321 - 21_591)
    rows = (
        (small, 1, "chain", 64.0, 55_617, 143_536, 1_085, 1_083, Proof(12.2, 25_434, 22_668)),
        (small, 1, "fused", 17.35, 2_606, 4_214, 1, 0, Proof(17.93 + 1.91 - 17.35, 3_284 - 2_606, 5_928 - 4_214)),
        (experts, 1, "chain", 64.0, 267_343, 1_781_404, 4_213, 4_211, chain),
        (experts, 1, "fused", 22.37, 9_194, 21_591, 1, 0, fused),
        (large, 8, "chain", 64.0, *_times(share, 267_343, 1_781_404, 4_213, 4_211), _more(chain, tensors)),
        (large, 8, "fused", 22.37, *_times(layers, 9_194, 21_591), 1, 0, _more(fused, tensors)),
    )
    return [
        Counts(model.name, ranks, path, kept[model.name] // ranks, kept[model.name], *counts)
        for model, ranks, path, *counts in rows
    ]


def tensors_of(model: Model) -> int:
    """Of the checkpoint, with a projection of an expert each by itself."""
    stacked = len(model.shapes())
    return stacked + model.layers * (3 * model.experts - 2) if model.experts else stacked


def _times(factor: float, *counts: int) -> list[int]:
    return [round(factor * count) for count in counts]


def _more(proof: Proof, factor: float) -> Proof:
    """That of a model with so many times the tensors."""
    return Proof(proof.bytes, *_times(factor, proof.calls, proof.views))


def from_json(text: str) -> list[Counts]:
    """Of one rank, from the list of objects that NPU_COST names; those with the proof are left out: it is added here.

    Raises:
        ValueError: it is no such list.
    """
    try:
        return [
            Counts(
                one["model"],
                1,
                one["format"],
                one["elements"],
                one["elements"],
                one["bytes_per_element"] + one["hidden"],
                one["ops"],
                one["views"],
                one["waits"],
                sum(one["aicpu"].values()),
            )
            for one in json.loads(text)
            if not one["proof"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"is no list of counts as NPU_COST=FILE ./run.sh test npu writes it: {error!r}") from error


def table(counts: Iterable[Counts], chinese: bool = False) -> str:
    """Seconds of a refit, from fast to slow, on each device."""
    head = list(COLUMNS_CHINESE if chinese else COLUMNS)
    rows = [head, ["---"] * len(head)]
    for one in counts:
        bandwidths = [BANDWIDTH, BANDWIDTH]
        rows.append(
            [
                *(one.model, str(one.ranks), one.path, f"{one.bytes:g}"),
                *(f"{number:,}" for number in (one.calls, one.views, one.waits)),
                *(_range(one.seconds(bandwidth, costs) for costs in (FAST, SLOW)) for bandwidth in bandwidths),
                _range(one.seconds(bandwidths[0], costs, proof=True) for costs in (FAST, SLOW)),
                _range(one.copies(bandwidths[0], costs) for costs in (FAST, SLOW)),
            ]
        )
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return text.replace(" to ", " 至 ") if chinese else text


def into(page: str) -> str:
    """A page with the table.

    Raises:
        ValueError: see `put_between`.
    """
    chinese = is_chinese(page, START, PAGES[0].name)
    return put_between(page, START, END, table(counted(), chinese))


def _range(values: Iterator[float]) -> str:
    low, high = sorted(values)
    return " to ".join(f"{one:.0f}" if one >= 10 else f"{one:.2g}" for one in (low, high))


def main() -> None:
    if len(sys.argv) > 1:
        print(table(from_json(Path(sys.argv[1]).read_text())), end="")
        return
    for page in PAGES:
        page.write_text(into(page.read_text()))


if __name__ == "__main__":
    main()
