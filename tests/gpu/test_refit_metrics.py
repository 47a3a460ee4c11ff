"""`refit/changed`, `kernel_ms` and the compilers' rest on a GPU: a vLLM engine that sleeps, and refits after it."""

import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

pytest.importorskip("vllm")
sys.path.append(str(Path(__file__).parents[1] / "engine"))

from engines import engine, model_of, refit, worker_of
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from ascend_quant import oracle
from ascend_quant.kernels.cuda.refit import launches
from ascend_quant.schemes import get_scheme

pytestmark = pytest.mark.gpu

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 512}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**SIZES, **HEADS, max_position_embeddings=256)).bfloat16().save_pretrained(path)
    return path


def asleep_and_awake(llm, level):
    llm.sleep(level=level)
    llm.wake_up()


def push(llm, state):
    """A refit from tensors on the device; returns its receipt."""
    with refit(llm).session():
        model_of(llm).load_weights([(name, tensor.cuda()) for name, tensor in state.items()])
    return refit(llm).last_receipt


def share(old, new, scheme):
    """Of the codes of every 64th row, by the oracle, of the layers as vLLM fuses them."""
    differing = total = 0
    for layer in range(SIZES["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for parts in (
            [f"self_attn.{name}_proj" for name in "qkv"],
            ["self_attn.o_proj"],
            ["mlp.gate_proj", "mlp.up_proj"],
            ["mlp.down_proj"],
        ):
            before, after = (
                torch.cat([oracle.quantize(state[f"{at}{part}.weight"], scheme)[0].view(torch.int8) for part in parts])
                for state in (old, new)
            )
            differing += int((before[::64] != after[::64]).sum())
            total += before[::64].numel()
    return differing / total


def check_changed(_: int, folder, name):
    first = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    second = {n: t * (1 + 0.1 * torch.randn(t.shape, generator=generator)).bfloat16() for n, t in first.items()}
    with engine(folder, name, enable_sleep_mode=True, skip_tokenizer_init=True, gpu_memory_utilization=0.2) as llm:
        assert refit(llm).last_receipt.changed is None
        expected = share(first, second, get_scheme(name))
        assert 0 < expected < 1
        for level in (1, 2):
            for state, changed in ((first, 0), (first, 0), (second, expected), (first, expected), (first, 0)):
                asleep_and_awake(llm, level)
                receipt = push(llm, state)
                assert receipt.changed == pytest.approx(changed, abs=1e-12), (level, state is first)
                assert 0 < receipt.kernel_ms < receipt.milliseconds
        assert refit(llm).why_not_servable() is None


@pytest.mark.parametrize("name", ["int8", "fp8", "fp8_block", "int4_g128"])
def test_changed_is_exact_after_either_sleep(folder, name):
    mp.spawn(check_changed, (folder, name))  # vLLM's sleeping engines: one a process


def test_the_first_syncs_compile_nothing(folder):
    state = load_file(folder / "model.safetensors")
    with engine(folder, "int8", load_format="dummy", skip_tokenizer_init=True, gpu_memory_utilization=0.2) as llm:
        assert worker_of(llm).device.type == "cuda"
        ready = set(launches._COMPILED)
        assert ready
        for dtype in (torch.bfloat16, torch.float32):
            push(llm, {name: tensor.to(dtype) for name, tensor in state.items()})
            assert set(launches._COMPILED) == ready
