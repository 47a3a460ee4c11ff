"""docs/metrics.md and its twin name every metric that the code makes, and no other, each with what to do."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ascend_quant
from ascend_quant.exact.counters import Compared
from ascend_quant.integrations.verl.metrics.receipts import OF_A_REPLICA
from ascend_quant.integrations.verl.metrics.renamed import GONE_IN, RENAMED
from ascend_quant.integrations.verl.metrics.replica_mismatch import replica_mismatch
from ascend_quant.kv_cache.scales import Scales
from ascend_quant.refit import Receipt
from ascend_quant.schemes.layer_names import LeftOut, Unquantized
from launch import ROOT

PAGES = [ROOT / "docs" / name for name in ("metrics.md", "metrics.zh.md")]
ADAPTERS = Path(ascend_quant.__file__).parent / "integrations"
OURS = ("refit/", "exact/", "rollout_corr/replica")
MOST = 24  # names: each is one that somebody acts on


def rows(page: Path) -> Iterator[list[str]]:
    """The cells of each row of the page's tables."""
    for line in re.findall(r"^\| (.*) \|$", page.read_text(), re.M):
        yield line.split(" | ")


def named(page: Path, prefix: str) -> set[str]:
    """The metrics in the first cells of the page's tables."""
    names = {name for cells in rows(page) for name in re.findall(r"`([^`]+)`", cells[0])}
    return {name for name in names if name.startswith(prefix)}


def refit_names() -> set[str]:
    """What a sync logs, by the code."""
    scales = Scales({"layers.0.self_attn": torch.tensor([[1.0], [2.0], [3.0]])}, age=0)
    numbers = 2, 3, 4, 5.0, 6.0, 0, 0, 0.5
    receipt = Receipt(*numbers, Unquantized("bf16"), f"{7:016x}", LeftOut(), {"kv_scales": scales}).as_metrics()
    files = [ADAPTERS / "verl" / name for name in ("receiving/worker.py", "sending/sync_metrics.py")]
    added = [re.findall(r'"(refit/\w+)":', file.read_text()) for file in files]
    assert all(added)
    return {*receipt, *(name for names in added for name in names)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_refit(page: Path):
    names = refit_names()
    assert names >= {*OF_A_REPLICA} | {f"refit/{now}" for now in RENAMED.values()}
    assert named(page, "refit/") == names | {name.replace("/", "/replicaR/") for name in OF_A_REPLICA}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_they_are_few_and_each_row_says_what_to_do(page: Path):
    ours = [cells for cells in rows(page) if any(name in cells[0] for name in OURS)]
    assert sum(len(re.findall("`", cells[0])) for cells in ours) // 2 <= MOST
    assert all(len(cells) == 3 and all(cells) for cells in ours), ours


def test_other_pages_name_no_metric_that_has_gone():
    known = {name for page in PAGES for name in re.findall(r"`([^`]+)`", "\n".join(cells[0] for cells in rows(page)))}
    for page in ({*(ROOT / "docs").glob("*.md")} | {ROOT / "README.md", ROOT / "README.zh.md"}) - {*PAGES}:
        names = re.findall(r"`((?:refit|exact|rollout_corr/replica\w)/[\w./]+)`", page.read_text())
        names = [re.sub(r"/replica\d", "/replicaR", name) for name in names if not name.endswith((".py", "/"))]
        assert {*names} <= known, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_old_names_stand_beside_the_new(page: Path):
    found = re.findall(r"`refit/(\w+)` → `refit/(\w+)`", page.read_text())
    assert dict(found) == RENAMED and GONE_IN in page.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_exact(page: Path):
    assert named(page, "exact/") == set(Compared(1, 0, 0.0, 0.0, None).as_metrics())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_of_each_replica(page: Path):
    one = [torch.tensor([-1.0, -2.0])]
    made = replica_mismatch([0], one, one, [torch.ones(2)])
    assert named(page, "rollout_corr/replica") == {name.replace("replica0", "replicaR") for name in made}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_of_verl(page: Path):
    helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper", reason="verl is not installed")
    pair = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.1, -1.9]])
    compute = helper.compute_rollout_correction_and_rejection_mask
    *_, metrics = compute(*pair, torch.ones(1, 2), rollout_is="token", rollout_is_threshold=2.0)
    ours = named(page, "rollout_corr/replica")
    assert ours < named(page, "rollout_corr/") <= ours | set(metrics)
