"""The ranks of test_correction_gradients.py: verl's engine takes one step of each case, and checks its gradients.

`run_ranks` starts them from a process of their own, which has imported verl once for all, on the platform `cpu`:
nothing that other tests have left in the process of pytest reaches them.
"""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from multiprocessing.forkserver import set_forkserver_preload
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gloo_ranks import leave
from packed_engine import PROMPT, build, worst
from torch import Tensor

TOKENS = 24  # of a micro-batch
LAYOUTS = {1: (1,), 2: (1, 2), 4: (1, 2)}  # ranks: how many share a sequence (Ulysses)
PRELOADED = [  # imported once, for all ranks
    "verl.workers.engine.fsdp.transformer_impl",
    "verl.workers.utils.losses",
    "ascend_quant.integrations.verl.training.packed_attention",
    "transformers.models.qwen3.modeling_qwen3",
]
jagged = partial(torch.nested.as_nested_tensor, layout=torch.jagged)


@dataclass
class Case:
    """What the ranks compute, and what they are to find: gradients by the parameter's name, float64."""

    name: str
    actor: object  # verl's ActorConfig
    given: dict[str, list[Tensor]]  # each field of the answers
    expected: dict[str, Tensor]


def batch_of(engine, case: Case, ids: list[Tensor], alone: bool):
    """A rank's share, as verl's trainer hands it to its workers; `alone`: each sequence in a micro-batch of its own."""
    from verl.utils import tensordict_utils

    mine = slice(engine.get_data_parallel_rank(), None, engine.get_data_parallel_size())
    ids, given = ids[mine], {name: values[mine] for name, values in case.given.items()}
    ones = [torch.ones(len(one) - PROMPT, dtype=torch.int64) for one in ids]
    fields = {
        "input_ids": ids,
        "position_ids": [torch.arange(len(one)) for one in ids],
        "prompts": [one[:PROMPT] for one in ids],
        "responses": [one[PROMPT:] for one in ids],
        "response_mask": ones,
        "loss_mask": ones,
        **given,
    }
    micro = {"use_dynamic_bsz": not alone, "max_token_len_per_gpu": TOKENS, "micro_batch_size_per_gpu": 1}
    settings = {"use_remove_padding": True, "temperature": 1.0, "calculate_entropy": False, **micro}
    settings["global_batch_size"] = len(case.given["advantages"])
    return tensordict_utils.get_tensordict({name: jagged(v) for name, v in fields.items()}, settings)


def run(engine, case: Case, ids: list[Tensor], alone: bool = False) -> tuple[float, int, dict]:
    """How far the farthest parameter's gradient is, how many micro-batches there were, and the loss's metrics."""
    from verl.workers.utils.losses import ppo_loss

    with engine.train_mode():
        engine.optimizer_zero_grad()
        out = engine.forward_backward_batch(batch_of(engine, case, ids, alone), partial(ppo_loss, case.actor))
        found = {name: p.grad.full_tensor().double() for name, p in engine.module.named_parameters()}
    return worst(found, case.expected), len(out["loss"]), out["metrics"]


ESS = "rollout_corr/rollout_is_eff_sample_size"


def check_rank(rank: int, ranks: int, folder) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{ranks}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    import verl  # noqa: F401  the plugin brings the cpu platform

    from ascend_quant.integrations.verl.training.attention_settings import PACKED

    ids, cases, wrong, off = pickle.loads((folder / "cases").read_bytes())
    for ulysses in LAYOUTS[ranks]:
        engine = build(folder, PACKED, ulysses)
        for case in cases:
            far, micro_batches, _ = run(engine, case, ids)
            assert far <= 1e-3, (case.name, ranks, ulysses, far)
            assert micro_batches > 1, "a split is what is looked at"
        far, _, metrics = run(engine, wrong, ids, alone=True)
        assert far > 1e-3, (wrong.name, ranks, ulysses, far)
        if ranks == ulysses:  # nobody else's sequence to take a mean with: every weight is 1, and the log looks best
            assert far > 0.2, far
            assert run(engine, off, ids, alone=True)[0] <= 1e-3
            assert metrics[ESS].values == pytest.approx([1.0] * len(ids))
    leave()


def start_ranks(folder: Path) -> None:
    """Each layout in turn, forked from one process that has imported verl."""
    set_forkserver_preload(PRELOADED)
    for ranks in LAYOUTS:
        mp.start_processes(check_rank, (ranks, folder), nprocs=ranks, start_method="forkserver")


def run_ranks(folder: Path) -> None:
    """Raises: AssertionError: with what the rank that failed first has said."""
    path = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ["PYTHONPATH"]]
    environment = os.environ | {"VERL_PLATFORM": "cpu", "PYTHONPATH": os.pathsep.join(path)}
    code = "import sys, pathlib, correction_ranks; correction_ranks.start_ranks(pathlib.Path(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
