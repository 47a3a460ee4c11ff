"""Runs of verl on a CPU whose engine has a device of its own: syncs are proved, and a wrong bit in one ends the run."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="the engine tests need vLLM")

from verl_runs import OURS, QUANTIZED, digests, log_engines, logged, prepare, receipts, train
from vllm.v1.engine.async_llm import AsyncLLM

from ascend_quant.demo.task import TINY
from ascend_quant.integrations.contract import takes

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not takes(AsyncLLM.pause_generation, "wait_for_inflight_requests"),
        reason="verl 0.9.1 passes wait_for_inflight_requests to pause_generation, which vLLM has dropped in 0.32",
    ),
]

TRANSPORT = Path(__file__).with_name("tcp_checkpoint_engine.py")
FULLY_ASYNC = "ascend_quant.integrations.verl.main_fully_async"
ELSEWHERE = (  # an engine on a device that is not the trainer's
    "actor_rollout_ref.hybrid_engine=False",
    "++actor_rollout_ref.rollout.nnodes=1",
    "++actor_rollout_ref.rollout.n_gpus_per_node=1",
    "++actor_rollout_ref.rollout.checkpoint_engine.backend=tcp",
    f"++actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module={TRANSPORT.stem}",
    "++ray_kwargs.ray_init.num_gpus=2",
)


class Apart(NamedTuple):
    """A run whose engine is elsewhere, with a sync before the first step and one after each.

    Attributes:
        main: that starts it.
        send: what the trainer sends.
        settings: of its mode.
        corrupts: the sync with a wrong bit; it ends the run.
        figures: how many of the syncs before it have figures in the log.
        named: what the error names.
        model: that is trained.
        tensors: it has, as checkpoints do.
        coded: of those that leave as codes; a layer's experts leave as two.
    """

    main: str
    send: str
    settings: tuple[str, ...]
    corrupts: int
    figures: int
    named: str
    model: str
    tensors: int
    coded: int


APART = (
    Apart(
        *(OURS, "int8"),
        ("trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.parameter_sync_step=1"),
        *(3, 1, r"weight sync failed.*model\.embed_tokens\.weight.*values"),
        *("qwen3-moe", 2 * (9 + 3 * 8) + 3, 2 * (4 + 2)),
    ),
    Apart(
        *(FULLY_ASYNC, "delta"),
        (
            *("data.train_batch_size=0", "data.gen_batch_size=1", "rollout.nnodes=1", "rollout.n_gpus_per_node=1"),
            *("rollout.total_rollout_steps=24", "async_training.trigger_parameter_sync_step=1"),
            *("async_training.staleness_threshold=0.5", "++ray_kwargs.ray_init.num_cpus=32"),
            "actor_rollout_ref.actor.optim.lr=1e-6",
        ),
        *(4, 3, r"ascend_quant\.delta\.0: format"),
        *("qwen2", 2 * 12 + 3, 2 * 7),
    ),
)


@pytest.mark.parametrize("run", APART, ids=[run.send for run in APART])
def test_a_bit_that_changes_on_its_way_to_an_engine_elsewhere_ends_the_run_and_is_named(tmp_path, run, monkeypatch):
    """The engine has a device of its own; its weights come through a checkpoint engine, and a worker beside it."""
    folder = prepare(tmp_path, run.model, TINY)
    log_engines(folder, monkeypatch)
    shutil.copy(TRANSPORT, folder)
    send = f"+actor_rollout_ref.rollout.engine_kwargs.ascend_quant.send={run.send}"  # codes from the second sync on
    wrong = f"++actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.tcp.corrupts={run.corrupts}"
    with pytest.raises(AssertionError, match=run.named):
        train(folder, QUANTIZED, *ELSEWHERE, *run.settings, send, wrong, main=run.main)
    synced = [step for step in logged(folder) if "refit/verified" in step]
    assert len(synced) == run.figures
    assert len(set(digests(folder))) == len(digests(folder)) == run.corrupts - 1
    assert all(step["refit/verified"] == run.tensors for step in synced)
    if run.send == "int8":
        assert f" bytes={synced[-1]['refit/bytes_sent']}, " in receipts(folder)[-1]
    assert synced[-1]["refit/prequantized"] == run.coded
    if run.send == "delta":  # all, all as codes, and what of these has changed
        whole, codes, changed = (step["refit/bytes_sent"] for step in synced)
        assert whole > codes > 0.5 * whole and changed < 0.1 * codes
