"""An engine with a profile: every refit holds what the rules say, with fresh scales and with a checkpoint's.

The profile is SmoothQuant's algebra with made-up factors, and its scales are those of compressed-tensors, in float32.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from engines import addresses, differing, engine, logprobs, model_of, prompts, push, refit, resident
from models import checkpoint, fused, is_quantized, make, perturbed, stacked
from naming import line_naming
from test_parallel import own_part
from vllm import SamplingParams

from ascend_quant.integrations.vllm.attach import _smoothing
from ascend_quant.integrations.vllm.config import AscendQuantConfig
from ascend_quant.oracle import TINY
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.profile.files import save
from ascend_quant.profile.rules import Profile, Rule
from ascend_quant.refit import RefitError
from ascend_quant.transfer.checksums import Receiving, sending

CHANNELS = QuantizationArgs(num_bits=8, type="int", strategy="channel", symmetric=True)
KINDS = ("qwen2", "qwen3-moe")


def factors(state: dict[str, torch.Tensor]) -> dict[str, Rule]:
    """Norms against what reads them, v against o, up against down; k and v heads are read by two query heads each."""
    generator = torch.Generator().manual_seed(11)

    def powers(count: int) -> torch.Tensor:
        return torch.exp(0.3 * torch.randn(count, generator=generator))

    rules = {}
    for layer in sorted({name.split(".")[2] for name in state if ".layers." in name}):
        prefix = f"model.layers.{layer}."
        here = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        first, second = powers(128), powers(128)
        value = powers(len(here["self_attn.v_proj.weight"]))
        found = {
            "input_layernorm.weight": Rule(False, 1 / first),
            "post_attention_layernorm.weight": Rule(False, 1 / second),
        }
        found["self_attn.o_proj.weight"] = Rule(True, 1 / value.view(2, 1, -1).expand(2, 2, -1).reshape(-1))
        if "self_attn.v_proj.bias" in here:
            found["self_attn.v_proj.bias"] = Rule(False, output_factor=value)
        for name, tensor in here.items():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                found[name] = Rule(True, first)
            elif name.endswith("v_proj.weight"):
                found[name] = Rule(True, first, value)
            elif name.endswith(("gate_proj.weight", "up_proj.weight")):
                found[name] = Rule(True, second)
            elif name.endswith("mlp.gate.weight"):
                found[name] = Rule(False, second)
            elif name.endswith("down_proj.weight"):
                inner = powers(tensor.shape[1])
                up = name.replace("down_proj", "up_proj")
                found[up], found[name] = Rule(True, second, inner), Rule(True, 1 / inner)
        rules |= {prefix + name: rule for name, rule in found.items()}
    # the last loop may have seen an up_proj after its down_proj
    for name in [name for name in rules if name.endswith("down_proj.weight")]:
        up = name.replace("down_proj", "up_proj")
        rules[up] = Rule(True, rules[up].input_factor, 1 / rules[name].input_factor)
    return rules


def smoothed(state: dict[str, torch.Tensor], rules: dict[str, Rule]) -> dict[str, torch.Tensor]:
    """x of every tensor, by numpy: float32, or BF16 where it is not quantized."""
    found = {}
    for name, tensor in state.items():
        x, rule = tensor.float().numpy(), rules.get(name, Rule(False))
        if rule.input_factor is not None:
            x = x * rule.input_factor.numpy()
        if rule.output_factor is not None:
            x = x * rule.output_factor.numpy().reshape(-1, *[1] * (x.ndim - 1))
        x = torch.from_numpy(x.copy())
        found[name] = x if rule.quantized else x.to(torch.bfloat16)
    return found


def w8a8(
    state: dict[str, torch.Tensor], rules: dict[str, Rule]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Codes and scales (N) of the quantized parameters, as compressed-tensors makes them."""
    codes, scales = {}, {}
    for name, x_NK in smoothed(state, rules).items():
        if name in rules and rules[name].quantized:
            scale, zero = calculate_qparams(x_NK.amin(1, keepdim=True), x_NK.amax(1, keepdim=True), CHANNELS)
            codes[name] = quantize(x_NK, scale, zero, CHANNELS, dtype=torch.int8)
            scales[name] = scale.float().view(-1)
    return codes, scales


def made(kind: str, folder) -> tuple:
    """A checkpoint, its profile's file, the profile's rules, and the codes of the W8A8 checkpoint."""
    model = make(kind, folder)
    state = checkpoint(model)
    rules = factors(state)
    codes, scales = w8a8(state, rules)
    for name, rule in factors(state).items():  # tensors of their own: a file does not take shared ones
        own = {part: tensor.clone() for part, tensor in rule.tensors().items()}
        rules[name] = Rule(rule.quantized, **own, scale=scales.get(name))
    path = folder / "profile.safetensors"
    save(Profile("int8", rules), path)
    return model, path, rules, codes


def expected(state, rules, frozen) -> tuple[dict[str, torch.Tensor], int]:
    """What the engine must hold, and how many codes it loses, by numpy from the rules alone."""
    result, lost = {}, 0
    scales = {name: rules[name].scale if frozen and name in rules else None for name in state}
    scales = {name: torch.zeros(len(state[name])) if scale is None else scale for name, scale in scales.items()}
    given = fused(scales)
    for name, x in fused(smoothed(state, rules)).items():
        if not is_quantized(name):
            result[name] = x
            continue
        x = x.numpy()
        scale, lowest = given[name].numpy(), -128
        if not frozen:
            absmax = np.abs(x).max(-1)
            scale, lowest = np.where(absmax < TINY, 0, (absmax.astype(np.float64) / 127)).astype(np.float32), -127
        codes = np.rint(x / scale[..., None])
        lost += int(((codes > 127) | (codes < lowest)).sum())
        result[name] = torch.from_numpy(codes.clip(lowest, 127).astype(np.int8))
        result[f"{name}_scale"] = torch.from_numpy(scale.copy()).unsqueeze(-1)
    return result, lost


def options(path, frozen: bool) -> dict:
    return {"quantization_config": {"profile": str(path), "frozen_scales": frozen}}


@pytest.fixture(scope="module", params=[(kind, frozen) for kind in KINDS for frozen in (False, True)], ids=str)
def loaded(request, tmp_path_factory):
    kind, frozen = request.param
    folder, path, rules, codes = made(kind, tmp_path_factory.mktemp("models"))
    with engine(folder, **options(path, frozen)) as llm:
        yield llm, folder, rules, codes, frozen


def test_first_load_and_three_refits_hold_what_the_rules_say(loaded):
    llm, folder, rules, _, frozen = loaded
    first, at_start = checkpoint(folder), addresses(llm)
    for step in range(4):
        state = perturbed(first, step) if step else first
        if step:
            push(llm, state)
        held, lost = expected(state, rules, frozen)
        assert differing(resident(llm), held) == []
        receipt = refit(llm).last_receipt
        assert receipt.clamped == lost and (lost > 0) == frozen
        assert receipt.tensors == len(state)
        assert receipt.bytes == sum(tensor.nbytes for tensor in state.values())
        assert receipt.digest == refit(llm).digest()
    assert addresses(llm) == at_start
    push(llm, {name: tensor.float() for name, tensor in first.items()})  # from a trainer that sends float32
    assert differing(resident(llm), expected(first, rules, frozen)[0]) == []


def test_unchanged_weights_give_the_checkpoints_codes_again(loaded):
    llm, folder, _, codes, frozen = loaded
    push(llm, checkpoint(folder))
    held = resident(llm)
    equal = total = 0
    for name, wanted in fused({**checkpoint(folder), **codes}).items():
        if is_quantized(name):
            off = (held[name].int() - wanted.int()).abs()
            assert off.max() <= 1
            equal, total = equal + int((off == 0).sum()), total + off.numel()
    if frozen:
        assert equal == total  # FlashRL's aim is 99.9 %
    else:
        assert 0.5 < equal / total < 0.99  # other scales: the comparison can fail


def test_what_arrived_is_proved_against_what_was_sent(loaded):
    llm, folder, *_ = loaded
    state = perturbed(checkpoint(folder), 3)
    proof = Receiving()
    with refit(llm).session():
        for pair in sending(state.items()):
            model_of(llm).load_weights(proof.take([pair]))
        assert proof.prove() == len(state)
    assert all(
        torch.equal(tensor, again)
        for tensor, again in zip(state.values(), perturbed(checkpoint(folder), 3).values(), strict=True)
    )


@pytest.mark.parametrize("loaded", [("qwen3-moe", False), ("qwen3-moe", True)], indirect=True, ids=str)
def test_stacked_experts_give_the_same_as_single_ones(loaded):
    llm, folder, rules, _, frozen = loaded
    state = perturbed(checkpoint(folder), 5)
    for sent in (stacked(state), state, stacked(state)):
        push(llm, sent)
        held, lost = expected(state, rules, frozen)
        assert differing(resident(llm), held) == [] and refit(llm).last_receipt.clamped == lost
        assert refit(llm).last_receipt.tensors == len(sent)


@pytest.mark.parametrize(
    ("kind", "how", "mode"), [("qwen2", "fresh", "tp"), ("qwen3-moe", "frozen", "tp"), ("qwen3-moe", "fresh", "ep")]
)
def test_ranks_hold_slices_of_what_the_rules_say(kind, how, mode, tmp_path):
    folder, path, rules, _ = made(kind, tmp_path)
    script, out = Path(__file__).parent / "smoothing_dump.py", tmp_path / "dump.pt"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{script.parent}:{script.parents[2]}",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }
    command = [sys.executable, str(script), *map(str, (out, folder, path, how, mode))]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    whole, lost = expected(perturbed(checkpoint(folder), 5), rules, how == "frozen")
    result = torch.load(out)
    for rank, held in enumerate(result["held"]):
        held = {name.replace(".routed_experts", ""): tensor for name, tensor in held.items()}
        assert held.keys() == whole.keys()
        for name, tensor in held.items():
            assert torch.equal(tensor, own_part(name, whole[name], rank, mode, "int8")), (rank, name)
    clamped, tensors = zip(*result["receipts"], strict=True)
    assert sum(clamped) == lost and (lost > 0) == (how == "frozen")
    assert min(tensors) >= len(rules) // 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_smoothed_engine_answers_as_an_unsmoothed_one(kind, tmp_path):
    folder, path, *_ = made(kind, tmp_path)
    found, answers = {}, {}
    for how, settings in {
        "bf16": {"scheme": "bf16"},
        "int8": {},
        "fresh": options(path, False),
        "frozen": options(path, True),
    }.items():
        with engine(folder, **settings) as llm:
            found[how] = logprobs(llm)
            greedy = llm.generate(prompts(), SamplingParams(max_tokens=4, temperature=0), use_tqdm=False)
            answers[how] = torch.tensor([list(answer.outputs[0].token_ids) for answer in greedy])
    error = {how: float((found[how] - found["bf16"]).abs().mean()) for how in found}
    spread = float((found["bf16"] - found["bf16"].mean()).abs().mean())
    for how in ("fresh", "frozen"):
        assert 0 < error[how] < 2 * error["int8"] < 0.2 * spread
        assert not torch.equal(found[how], found["int8"])
        assert (answers[how] == answers["bf16"]).float().mean() > 0.7


def test_options_are_checked(tmp_path):
    for option, message in {
        "profile": (3, r"profile=3: .* file"),
        "frozen_scales": ("false", r"frozen_scales='false': give true or false"),
    }.items():
        with pytest.raises(ValueError, match=message[1]):
            AscendQuantConfig.from_config({"quant_method": "ascend_quant", option: message[0]})
    with pytest.raises(ValueError, match="option profile"):
        AscendQuantConfig(frozen_scales=True)
    nothing = AscendQuantConfig(profile=str(tmp_path / "none"))
    with pytest.raises(BadCheckpoint, match=r"no profile at .*none\.safetensors"):
        _smoothing(nothing, torch.device("cpu"), lambda name: False)
    save(Profile("fp8", {}), tmp_path / "other")
    with pytest.raises(RefitError, match=line_naming("scheme fp8, … int8")):
        _smoothing(AscendQuantConfig(profile=str(tmp_path / "other")), torch.device("cpu"), lambda name: False)
    with pytest.raises(RefitError, match=line_naming("fp8: … int8")):
        _smoothing(
            AscendQuantConfig(scheme="fp8", profile=str(tmp_path / "other")), torch.device("cpu"), lambda name: False
        )
