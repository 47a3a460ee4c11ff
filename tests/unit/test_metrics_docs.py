"""docs/metrics.md and its twin name every metric that the code makes, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ascend_quant
from ascend_quant.exact.counters import Compared
from ascend_quant.integrations.verl.metrics.replica_mismatch import replica_mismatch
from ascend_quant.integrations.verl.metrics.start_up import STARTED, StartUp
from ascend_quant.kv_cache.scales import Scales
from ascend_quant.names import LeftOut, Unquantized
from ascend_quant.refit import Receipt
from launch import ROOT

PAGES = [ROOT / "docs" / name for name in ("metrics.md", "metrics.zh.md")]
ADAPTERS = Path(ascend_quant.__file__).parent / "integrations"


def named(page: Path, prefix: str) -> set[str]:
    """The metrics in the first cells of the page's tables."""
    cells = re.findall(r"^\| (.*?) \|", page.read_text(), re.M)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell) if name.startswith(prefix)}


def in_code(file: str, called: str) -> Iterator[ast.expr]:
    """The first argument of each call of a method of this name."""
    for node in ast.walk(ast.parse((ADAPTERS / file).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == called:
            yield node.args[0]


def constant(file: str, name: str) -> object:
    """A module's constant, read without importing what the module needs."""
    for node in ast.parse((ADAPTERS / file).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{file} has no {name}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_refit(page: Path):
    scales = Scales({"layers.0.self_attn": torch.tensor([[1.0], [2.0], [3.0]])}, age=0)
    numbers = 2, 3, 4, 5.0, 6.0, 0, 0, 0.5
    receipt = Receipt(*numbers, Unquantized("bf16"), f"{7:016x}", LeftOut(), scales).as_metrics()
    files = [ADAPTERS / "verl" / name for name in ("receiving/worker.py", "sending/sync_metrics.py")]
    added = [re.findall(r'"(refit/\w+)":', file.read_text()) for file in files]
    assert all(added)
    added = [name for names in added for name in names]
    assert named(page, "refit/") == {*receipt, *added, "refit/replicaR/*"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_exact(page: Path):
    assert named(page, "exact/") == set(Compared(1, 0, 0.0, 0.0, None).as_metrics())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_of_each_replica(page: Path):
    one = [torch.tensor([-1.0, -2.0])]
    made = replica_mismatch([0], one, one, [torch.ones(2)], threshold=2.0)
    assert named(page, "rollout_corr/replica") == {name.replace("replica0", "replicaR") for name in made}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_of_verl(page: Path):
    helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper", reason="verl is not installed")
    pair = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.1, -1.9]])
    compute = helper.compute_rollout_correction_and_rejection_mask
    *_, metrics = compute(*pair, torch.ones(1, 2), rollout_is="token", rollout_is_threshold=2.0)
    ours = named(page, "rollout_corr/replica")
    assert ours < named(page, "rollout_corr/") <= ours | set(metrics)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_start_up(page: Path):
    trainer, engine = "verl/trainer.py", "vllm/start_up.py"
    start = StartUp({STARTED: "0,1"}, now=lambda: 2.0)
    parts = {
        "models": ["actor"],
        "engines": [
            *(ast.literal_eval(part) for part in in_code("vllm/attach.py", "add") if isinstance(part, ast.Constant)),
            *constant(engine, "STEPS").values(),
            "torch.compile",
        ],
        constant(trainer, "STEP"): [f"{name} 1" for name in ("prompts sent", *constant(trainer, "TIMED"))],
    }
    stages = [stage.value for stage in in_code(trainer, "mark") if isinstance(stage, ast.Constant)]
    for stage in (*stages, *constant(trainer, "ASSIGNED").values(), constant(trainer, "STEP")):
        start.mark(stage, dict.fromkeys(parts.get(stage, ()), 0.0))
    assert parts.keys() < start.stages.keys()
    assert named(page, "start_up/") == set(start.metrics())
