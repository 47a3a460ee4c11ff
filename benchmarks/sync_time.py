"""A weight sync on paper, by what the trainer sends: `ascend-quant advise --sync-from` for clusters that people have.

`python -m benchmarks.sync_time` writes the table into docs/advise.md and docs/advise.zh.md, between two comments.
"""

from pathlib import Path
from typing import NamedTuple

from ascend_quant.advise.devices import get_device
from ascend_quant.advise.families import shape_of
from ascend_quant.advise.syncs import Route, syncs
from benchmarks.models import Model, get_model
from benchmarks.npu_time import QWEN3_235B
from launch.generated import is_chinese, put_between

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "advise.md", ROOT / "docs" / "advise.zh.md")
COLUMNS = ("model", "train", "an engine", "wire, GB/s", "send", "GB", "wire, s", "gather, s", "together, s")
COLUMNS_CHINESE = ("模型", "训练", "一个引擎", "线路，GB/s", "send", "GB", "线路，秒", "gather，秒", "合计，秒")
START, END = "<!-- syncs: written by python -m benchmarks.sync_time -->", "<!-- end of syncs -->"


class Cluster(NamedTuple):
    """What is trained where; the wire in GB/s, None where engines are on the trainer's devices."""

    model: Model
    device: str
    trainers: int
    tp: int
    wire: float | None = None


CLUSTERS = (
    Cluster(get_model("qwen2.5-7b"), "H200", 2, 1),
    Cluster(get_model("qwen2.5-7b"), "H200", 8, 1, 50),
    Cluster(get_model("qwen3-30b-a3b"), "H200", 8, 2, 50),
    Cluster(QWEN3_235B, "H200", 64, 8, 50),
    Cluster(QWEN3_235B, "A3", 192, 16, 25),
)


def table(chinese: bool = False) -> str:
    """A row for what is sent in each cluster."""
    head = list(COLUMNS_CHINESE if chinese else COLUMNS)
    rows = [head, ["---"] * len(head)]
    for one in CLUSTERS:
        route = Route(one.trainers, one.tp, None if one.wire is None else one.wire * 1e9)
        devices = f"{one.trainers} {one.device}", f"{one.tp} {one.device}", "" if one.wire is None else f"{one.wire}"
        for send, sync in syncs(shape_of(one.model.config()), get_device(one.device), route).items():
            hops = (f"{sync.seconds[hop]:.2f}" if hop in sync.seconds else "" for hop in ("wire", "gather"))
            more = "> " if sync.unknown else ""
            rows.append(
                [one.model.name, *devices, send, f"{sync.bytes / 1e9:.2f}", *hops, f"{more}{sync.together:.2f}"]
            )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def into(page: str) -> str:
    """A page with the table.

    Raises:
        ValueError: see `put_between`.
    """
    chinese = is_chinese(page, START, PAGES[0].name)
    return put_between(page, START, END, table(chinese))


def main() -> None:
    for page in PAGES:
        page.write_text(into(page.read_text()))


if __name__ == "__main__":
    main()
