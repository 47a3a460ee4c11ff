"""The balance of an int8 cache's keys in real engines, on CPUs, whose caches are BF16: it must change no bit there.

Then with keys that are rounded on their way into attention as an int8 cache rounds them: it must heal.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engines import addresses, buckets, check_of, differing, engine, logprobs, model_of, refit, resident, worker_of
from models import checkpoint, expected, fused, make, perturbed, save
from vllm import SamplingParams

from ascend_quant import oracle
from ascend_quant.integrations.vllm import compat
from ascend_quant.integrations.vllm.kv_cache import key_balance
from ascend_quant.kv_cache.smooth_attention import KeyBalance
from ascend_quant.oracle.cache import dequantize_cache, quantize_cache
from ascend_quant.oracle.key_balance import key_balance as balance_of
from ascend_quant.oracle.key_balance import key_sizes
from ascend_quant.refit.resident import ResidentWeight
from ascend_quant.refit.scales import BlockScaledWeight
from ascend_quant.schemes import get_scheme

HERE = Path(__file__).parent
pytestmark = pytest.mark.timeout(600)
ENGINES = [("qwen2", "int8"), ("qwen3", "int8"), ("qwen2", "bf16"), ("qwen3-moe", "int8"), ("qwen2", "fp8_tensor")]
HEAD = 32  # of models without norms of heads


def planted(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With keys that lie out, as far as weights can make them: in biases, in norms of heads."""
    found = {name: tensor.clone() for name, tensor in state.items()}
    for name, tensor in found.items():
        if name.endswith("k_proj.bias"):
            tensor[5], tensor[40 % len(tensor)], tensor[-3] = 60, -120, 300
        if name.endswith("k_norm.weight"):
            tensor[5], tensor[-7] = 30, 12
    return found


def checkpoint_of(kind: str, folder: Path, **more) -> Path:
    made = make(kind, folder, **more)
    save(planted(checkpoint(made)), made)
    return made


def switch(monkeypatch, on: bool) -> None:
    """Have the CPU's BF16 cache balanced."""
    monkeypatch.setattr(key_balance, "ROUNDS_CHANNELS_ALIKE", ("auto",) if on else ())


@pytest.fixture(params=ENGINES, ids=" ".join)
def given(request, tmp_path):
    kind, scheme = request.param
    return checkpoint_of(kind, tmp_path), scheme


def factors_of(state: dict[str, torch.Tensor], scheme: str) -> dict[str, torch.Tensor]:
    """Of each attention, from the checkpoint."""
    found = {}
    for name in [name for name in state if name.endswith("k_proj.weight")]:
        owner = name.removesuffix(".k_proj.weight")
        norm = state[f"{owner.removesuffix('.self_attn')}.input_layernorm.weight"]
        bias, k_norm = state.get(f"{owner}.k_proj.bias"), state.get(f"{owner}.k_norm.weight")
        w_NK, head = state[name], len(k_norm) if k_norm is not None else HEAD
        if get_scheme(scheme).quantized:
            w_NK = oracle.dequantize(*oracle.quantize(w_NK, get_scheme(scheme)))
        found[owner] = balance_of(*key_sizes(w_NK, norm, bias, k_norm, head), shared=k_norm is not None)
    return found


def scaled(state: dict[str, torch.Tensor], factors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The checkpoint as a trainer would have it with balanced keys."""
    found = dict(state)
    for owner, factor_GD in factors.items():
        group = len(state[f"{owner}.q_proj.weight"]) // factor_GD.numel()
        by_kind = {"q": factor_GD.repeat_interleave(group, 0), "k": 1 / factor_GD}
        for kind, factor in by_kind.items():
            if f"{owner}.k_norm.weight" in state:
                found[f"{owner}.{kind}_norm.weight"] = (found[f"{owner}.{kind}_norm.weight"] * factor[0]).bfloat16()
                continue
            for leaf in ("weight", "bias"):
                name = f"{owner}.{kind}_proj.{leaf}"
                by_row = factor.view(-1, *[1] * (state[name].dim() - 1))
                found[name] = (state[name] * by_row).bfloat16()
    return found


def test_no_bit_of_the_answers_changes(given, monkeypatch):
    folder, scheme = given
    found = []
    for on in (False, True):
        switch(monkeypatch, on)
        with engine(folder, scheme) as llm:
            found.append((logprobs(llm), resident(llm), check_of(llm, KeyBalance)))
            refit(llm).verify()
            refit(llm).require_servable()
    (off, bytes_off, none), (on, bytes_on, balance) = found
    assert none is None and balance.why_not is None
    assert max(float(factor_GD.max()) for factor_GD in balance.factors.values()) >= 8
    assert off.isfinite().all() and torch.equal(off, on)
    assert 0 < len(differing(bytes_off, bytes_on)) < len(bytes_on) / 2


def test_bytes_are_those_of_a_balanced_checkpoint_after_every_refit(given, monkeypatch):
    folder, scheme = given
    if scheme == "fp8_tensor":
        pytest.skip("its one scale of a matrix would be another one of the balanced matrix")
    switch(monkeypatch, True)
    states = [checkpoint(folder), planted(perturbed(checkpoint(folder), 1))]
    balanced = [scaled(state, factors_of(state, scheme)) for state in states]
    quantized = get_scheme(scheme).quantized
    wanted = [expected(state, scheme) if quantized else fused(state) for state in balanced]
    with engine(folder, scheme) as llm:
        assert not differing(resident(llm), wanted[0])
        places, first = addresses(llm), refit(llm).last_receipt.digest
        for number, backwards in ((1, False), (1, True), (0, True)):
            sent = dict(reversed(states[number].items())) if backwards else states[number]
            with refit(llm).session():
                for bucket in buckets(sent, limit=1 << 14):
                    model_of(llm).load_weights(bucket)
            assert not differing(resident(llm), wanted[number]), (number, backwards)
            assert refit(llm).digest() == refit(llm).last_receipt.digest
        assert addresses(llm) == places and refit(llm).last_receipt.digest == first


def sync(worker, state: dict[str, torch.Tensor]) -> None:
    """As a trainer's: one session."""
    model = worker.model_runner.model
    with model.ascend_quant_refit.session():
        model.load_weights(state.items())


def test_keys_of_other_factors_are_computed_anew(tmp_path, monkeypatch):
    """What is in flight across a sync: its keys were divided by the former factors."""
    switch(monkeypatch, True)
    folder = checkpoint_of("qwen2", tmp_path / "old")
    same = {name: tensor * 1.5 if "mlp" in name else tensor for name, tensor in checkpoint(folder).items()}
    other = {name: tensor * 8 if name.endswith("k_proj.bias") else tensor for name, tensor in same.items()}
    new = make("qwen2", tmp_path / "new")
    save(other, new)
    tokens = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [[3, 4, 5 + i] * 5 for i in range(4)]
    with engine(folder) as llm:
        logprobs(llm)
        resets, core = [], llm.llm_engine.engine_core.engine_core
        original = core.reset_prefix_cache
        core.reset_prefix_cache = lambda *args, **more: resets.append(more) or original(*args, **more)
        llm.collective_rpc(sync, args=(same,))
        assert (refit(llm).last_receipt.number, check_of(llm, KeyBalance).cache_since) == (2, 1)
        assert resets == [{}]
        for i, prompt in enumerate(prompts):
            llm.llm_engine.add_request(f"flying-{i}", {"prompt_token_ids": prompt}, tokens)
        for _ in range(6):
            so_far = {output.request_id: list(output.outputs[0].token_ids) for output in llm.llm_engine.step()}
        llm.collective_rpc(sync, args=(other,))
        assert check_of(llm, KeyBalance).cache_since == 3 and resets[1:] == [{"reset_running_requests": True}]
        ended = {}
        while llm.llm_engine.has_unfinished_requests():
            outputs = [output for output in llm.llm_engine.step() if output.finished]
            ended |= {output.request_id: list(output.outputs[0].token_ids) for output in outputs}
    with engine(new) as llm:
        for i, prompt in enumerate(prompts):
            begun, whole = so_far[f"flying-{i}"], ended[f"flying-{i}"]
            assert 0 < len(begun) < tokens.max_tokens and whole[: len(begun)] == begun
            rest = SamplingParams(max_tokens=tokens.max_tokens - len(begun), temperature=0, ignore_eos=True)
            asked = {"prompt_token_ids": prompt + begun}
            assert whole[len(begun) :] == list(llm.generate(asked, rest, use_tqdm=False)[0].outputs[0].token_ids)


def rounding(original):
    """For vLLM's attention: keys as an int8 cache gives them back."""

    def forward(self, query, key, *more, **named):
        codes, scale = quantize_cache(key.view(-1, self.num_kv_heads, self.head_size))
        return original(self, query, dequantize_cache(codes, scale).to(key.dtype).view(key.shape), *more, **named)

    return forward


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_rounded_keys_are_healed(kind, tmp_path, monkeypatch):
    folder, found = checkpoint_of(kind, tmp_path, hidden_size=256), {}  # heads of 64 channels
    for name, on, rounded in (("exact", False, False), ("off", False, True), ("on", True, True)):
        with monkeypatch.context() as patched:
            switch(patched, on)
            if rounded:
                patched.setattr(compat.AttentionLayer, "forward", rounding(compat.AttentionLayer.forward))
            with engine(folder, "bf16") as llm:
                found[name] = logprobs(llm)
    change = {name: (found[name] - found["exact"]).square().mean().item() for name in ("off", "on")}
    print(kind, change)
    assert 0 < change["on"] < change["off"] / 4


def test_what_is_arranged_otherwise_is_left_alone_by_name(tmp_path, monkeypatch):
    with engine(checkpoint_of("qwen3", tmp_path)) as llm:
        model, config = model_of(llm), worker_of(llm).vllm_config
        residents = {one.name: one for one in refit(llm).residents}

        def why(residents=residents, cache: str = "int8_per_token_head", kind: str = "qwen3"):
            text = SimpleNamespace(model_type=kind)
            given = SimpleNamespace(
                cache_config=SimpleNamespace(cache_dtype=cache), model_config=SimpleNamespace(hf_text_config=text)
            )
            balance = key_balance.follow(model, given, residents)
            return balance if balance is None else balance.why_not

        assert str(config.cache_config.cache_dtype) not in key_balance.ROUNDS_CHANNELS_ALIKE
        assert why() is None and [why(cache=cache) for cache in ("auto", "fp8")] == [None, None]
        assert "phi3" in why(kind="phi3")
        block = "model.layers.1"
        norm, qkv, by_head = (
            f"{block}.{leaf}.weight" for leaf in ("input_layernorm", "self_attn.qkv_proj", "self_attn.k_norm")
        )
        assert norm in why({name: one for name, one in residents.items() if name != norm})
        odd = ResidentWeight(by_head, torch.zeros(32))
        assert f"{block}.self_attn" in why(residents | {by_head: odd})
        codes = torch.zeros(128, 128 * 128, dtype=torch.float8_e4m3fn)  # as many scales as rows
        blocks = BlockScaledWeight(qkv, codes, torch.zeros(1, 128), codes.shape[1])
        assert qkv in why(residents | {qkv: blocks})
        rotation = model.get_submodule(f"{block}.self_attn").rotary_emb
        for name, value in (("is_neox_style", False), ("rotary_dim", rotation.rotary_dim // 2)):
            monkeypatch.setattr(rotation, name, value)
            assert "self_attn" in why()
            monkeypatch.undo()
        assert why() is None


def test_two_ranks_with_copies_of_a_head(tmp_path):
    folder = checkpoint_of("qwen2", tmp_path, num_key_value_heads=1)
    path = os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path, "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    found = {}
    for on in ("on", "off"):
        command = [sys.executable, str(HERE / "balanced_ranks.py"), str(tmp_path / on), str(folder), on]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
        found[on] = torch.load(tmp_path / on)
    (ranks, on), (others, off) = found["on"], found["off"]
    assert torch.equal(on, off)
    factors = factors_of(checkpoint(folder), "int8")
    for (held, own, is_proved), (other, _, _) in zip(ranks, others, strict=True):
        assert is_proved and differing(held, other) and own.keys() == factors.keys()
        assert all(torch.equal(own[owner], factor_GD) for owner, factor_GD in factors.items())
