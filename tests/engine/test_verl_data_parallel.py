"""One server of verl may have several data-parallel engines behind it: every one of them is asked for its receipts."""

import asyncio

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="the engine tests need vLLM")

from models import make
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from ascend_quant.integrations.verl.compat import ask_every_engine

pytestmark = pytest.mark.timeout(300)


async def answers(folder, options, **parallel) -> tuple[list, list]:
    """What each engine's workers say of their last refit and of their options."""
    arguments = AsyncEngineArgs(
        model=str(folder),
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=64,
        quantization="ascend_quant",
        hf_overrides={"quantization_config": {"quant_method": "ascend_quant", **options}},
        worker_extension_cls="ascend_quant.integrations.verl.receiving.worker.RefitWorkerExtension",
        **parallel,
    )
    engine = AsyncLLM.from_engine_args(arguments)
    try:
        receipts = await ask_every_engine(engine, "refit_receipt")
        return receipts, await ask_every_engine(engine, "refit_quantization")
    finally:
        engine.shutdown()


@pytest.mark.parametrize("engines", [1, 2])
def test_every_engine_answers_for_itself(engines, tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    folder = make("qwen2", tmp_path)
    options = {"replicas": [{"scheme": "int8"}, {"scheme": "bf16"}]}  # so that the engines differ
    receipts, quantizations = asyncio.run(answers(folder, options, data_parallel_size=engines))
    assert [len(workers) for workers in receipts] == [len(workers) for workers in quantizations] == [1] * engines
    assert len({digests["weights"] for ((_, digests),) in receipts}) == engines
    for (said,), scheme in zip(quantizations, ("int8", "bf16"), strict=False):
        assert f"scheme='{scheme}'" in said
