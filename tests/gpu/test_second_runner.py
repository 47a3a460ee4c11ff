"""An engine under vLLM's second model runner, which CPU builds never run: every way in and out of its weights."""

import pytest
import torch
from trainings import write_model

pytest.importorskip("vllm")

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "engine"))

from engines import engine, model_of, refit, worker_of
from models import perturbed
from safetensors.torch import load_file, save_file
from vllm import SamplingParams

from ascend_quant.refit import RefitError

WANTED = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False)
PROMPTS = [{"prompt_token_ids": [(7 * i + j) % 500 + 2 for j in range(16 + 24 * i)]} for i in range(8)]
SETTINGS = {"skip_tokenizer_init": True, "max_model_len": 512, "kv_cache_memory_bytes": 1 << 28}
SETTINGS |= {"gpu_memory_utilization": 0.2, "enable_sleep_mode": True}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """An engine, the checkpoint that it began with, and another one of the same shapes."""
    before, after = (tmp_path_factory.mktemp(name) for name in ("before", "after"))
    for folder in (before, after):
        write_model("qwen3", folder)
    state = load_file(before / "model.safetensors")
    save_file(perturbed(state, 1), after / "model.safetensors", {"format": "pt"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
        with engine(before, "int8", **SETTINGS) as llm:
            assert type(worker_of(llm).model_runner).__module__ == "vllm.v1.worker.gpu.model_runner"
            yield llm, before, after


def answers(llm) -> list[list[int]]:
    llm.reset_prefix_cache()  # or a prompt's last tokens would be computed alone, in another order of sums
    return [list(one.outputs[0].token_ids) for one in llm.generate(PROMPTS, WANTED, use_tqdm=False)]


def on_device(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.cuda() for name, tensor in load_file(folder / "model.safetensors").items()}


def fused(llm) -> tuple[str, torch.Tensor]:
    """A parameter as "kernel format" names it, with BF16 values."""
    name = "model.layers.0.mlp.gate_up_proj.weight"
    return name, torch.randn(model_of(llm).get_parameter(name).shape, dtype=torch.bfloat16, device="cuda")


@pytest.mark.parametrize("given", [(None, False), ()], ids=["by place", "by keyword"])
@pytest.mark.parametrize("owner", [worker_of, lambda llm: worker_of(llm).model_runner], ids=["worker", "runner"])
def test_weights_in_kernel_format_are_refused_before_a_byte_is_written(running, owner, given):
    llm, *_ = running
    digest = refit(llm).digest()
    with pytest.raises(RefitError, match="is_checkpoint_format"):
        owner(llm).reload_weights(iter([fused(llm)]), *given, **({} if given else {"is_checkpoint_format": False}))
    assert refit(llm).digest() == digest and answers(llm)


def test_reloads_and_refits_end_at_the_same_bytes(running):
    llm, before, after = running
    first, tokens = refit(llm).digest(), answers(llm)
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(after)})
    second, others = refit(llm).digest(), answers(llm)
    assert second != first and others != tokens
    with refit(llm).session():
        model_of(llm).load_weights(list(on_device(before).items()))
    assert refit(llm).digest() == first and answers(llm) == tokens
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(on_device(after).items())})
    assert refit(llm).digest() == second and answers(llm) == others


@pytest.mark.parametrize("level", [1, 2])
def test_asleep_and_half_written_it_refuses_and_a_refit_heals(running, level):
    llm, before, _ = running
    with refit(llm).session():
        model_of(llm).load_weights(list(on_device(before).items()))
    digest, tokens = refit(llm).digest(), answers(llm)
    llm.sleep(level=level)
    with pytest.raises(RefitError):
        llm.generate(PROMPTS[:1], WANTED, use_tqdm=False)
    llm.wake_up()
    if level == 1:
        assert answers(llm) == tokens
    else:
        with pytest.raises(RefitError):
            llm.generate(PROMPTS[:1], WANTED, use_tqdm=False)
    state = list(on_device(before).items())
    refit(llm).open()
    model_of(llm).load_weights(state[:3])
    with pytest.raises(RefitError):
        llm.generate(PROMPTS[:1], WANTED, use_tqdm=False)
    model_of(llm).load_weights(state[3:])
    refit(llm).close()
    assert refit(llm).digest() == digest and answers(llm) == tokens
