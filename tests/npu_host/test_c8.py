"""vllm-ascend's int8 KV cache (C8) under refits: all that its attention reads is of this step, where it always was.

Its classes, the model, the worker's hooks and torch_npu are the real ones; the memory is the host's.
"""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from naming import line_naming

from ascend_quant.engine.layout import layouts_of
from ascend_quant.integrations import vllm as plugin
from ascend_quant.integrations.vllm import compat
from ascend_quant.integrations.vllm.kv_cache.options import OF_ASCEND
from ascend_quant.kv_cache.scales import AGE
from ascend_quant.refit import RefitError
from npu_host import c8_models, memory, two_ranks
from npu_host.c8_models import HEADS, KV_HEADS, NAMES, SIZE, attentions, holds, scales_of, state_of, sync, tensors_of

plugin.register()

FIRST = next(iter(NAMES))
TOKENS = 70


@pytest.fixture(scope="module", params=c8_models.ARCHITECTURES)
def built(request, tmp_path_factory):
    """The architecture and a model that has had the first load."""
    with c8_models.built(tmp_path_factory.mktemp("engine"), request.param) as (model, _):
        sync(model, state_of(request.param, 0), scales_of(0))
        yield request.param, model


def addresses(model) -> list[dict[str, int]]:
    return [{name: tensor.data_ptr() for name, tensor in tensors_of(layer).items()} for layer in attentions(model)]


def decoded(layer) -> tuple[torch.Tensor, torch.Tensor]:
    """One token over keys and values that go through the cache, by vllm-ascend's own functions; and without a cache."""
    torch.manual_seed(5)
    limits = [127 * getattr(layer, f"{kind}_cache_scale").cpu().float().view(KV_HEADS, SIZE) for kind in "kv"]
    with torch.device("cpu"):
        shape = (TOKENS, KV_HEADS, SIZE)
        keys, values = ((torch.rand(shape, dtype=torch.float32) * 2 - 1) * limit for limit in limits)
        query = torch.randn(1, HEADS, SIZE, dtype=torch.bfloat16) / 16  # no softmax of one token alone
    metadata = SimpleNamespace(
        num_actual_tokens=TOKENS,
        slot_mapping=torch.arange(TOKENS, dtype=torch.int32).npu() + 128,
        block_tables=torch.tensor([[1]], dtype=torch.int32),
        seq_lens_list=[TOKENS],
    )
    impl = layer.impl
    cache = tuple(torch.zeros(2, 128, KV_HEADS, SIZE, dtype=torch.int8) for _ in "kv")
    try:
        codes = impl._quantize_kv_to_int8(keys.bfloat16().npu(), values.bfloat16().npu(), layer, TOKENS)
        impl._reshape_and_cache(query, *codes, cache, metadata, None)
        found = impl._forward_c8_decode(query.npu(), metadata, torch.empty(query.shape), layer).cpu().double()
    finally:
        impl.key_cache = impl.value_cache = None
    k, v = (one.bfloat16().double().repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for one in (keys, values))
    wanted = torch.nn.functional.scaled_dot_product_attention(query.double().transpose(0, 1), k, v).transpose(0, 1)
    return found, wanted


@pytest.mark.each_version
def test_every_refit_writes_all_in_place(built):
    architecture, model = built
    before, refit = addresses(model), plugin.refit_of(model)
    holds(model, scales_of(0))
    captured = {  # what graphs keep: addresses, no references
        name: [memory.alias(getattr(layer, name)) for layer in attentions(model)] for name in c8_models.READ_BY_KERNELS
    }
    digests = set()
    for step in (1, 2):
        state = state_of(architecture, step)
        sync(model, state, scales_of(step))
        holds(model, scales_of(step))
        assert addresses(model) == before and refit.why_not_servable() is None
        receipt = refit.last_receipt
        assert receipt.tensors == len(state) + len(scales_of(step)) and receipt.reports["kv_scales"].age == 0
        digests.add(receipt.reports["kv_scales"].digest)
        for layer in attentions(model):  # as vLLM does after loading, and verl after every sync
            layer.quant_method.process_weights_after_loading(layer)
            layer.process_weights_after_loading(torch.bfloat16)
            layer.impl._prepare_c8_scales(layer, layer.k_cache_scale.device)  # as a forward pass does
        assert addresses(model) == before
        holds(model, scales_of(step))
        for name, (index, kind) in NAMES.items():
            wanted = scales_of(step)[name].to(torch.bfloat16)
            for place in (f"_c8_{kind}_scale", f"_c8_{kind}_aq_scale_nz_bnsd"):
                assert torch.equal(captured[place][index].flatten(), wanted)
        for layer in attentions(model):
            found, expected = decoded(layer)
            assert (found - expected).abs().max() < 0.03 * expected.abs().max()
    assert len(digests) == 2
    assert not [name for name, _ in model.named_parameters() if "cache" in name]


@pytest.mark.each_version
@pytest.mark.parametrize("name", [*c8_models.READ_BY_KERNELS, "_c8_v_inv_scale", "_c8_k_offset"])
def test_what_is_written_past_a_refit_is_found_before_a_request(built, name):
    architecture, model = built
    refit = plugin.refit_of(model)
    sync(model, state_of(architecture, 6), scales_of(6))
    getattr(attentions(model)[1], name)[..., 3].fill_(1)
    refit.look()
    assert "layers.1.self_attn" in refit.why_not_servable()
    sync(model, state_of(architecture, 7), scales_of(7))
    refit.look()
    assert refit.why_not_servable() is None


def changed(scales: dict, name: str, value) -> dict:
    return {key: value if key == name else tensor for key, tensor in scales.items() if key != name or value is not None}


NAN = torch.full((c8_models.CHANNELS,), 0.5)
NAN[-1] = float("nan")


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (lambda scales: {}, "layers.0.self_attn"),  # no bound of weights is tight enough
        (lambda scales: changed(scales, FIRST, None), FIRST.removeprefix("model.")),
        (lambda scales: changed(scales, AGE, None), AGE),
        (lambda scales: changed(scales, AGE, torch.ones(1, dtype=torch.int64)), f"{AGE}=1"),
        (lambda scales: changed(scales, FIRST, torch.ones(1)), FIRST),
        (lambda scales: changed(scales, FIRST, torch.ones(c8_models.CHANNELS, dtype=torch.bfloat16)), FIRST),
        (lambda scales: changed(scales, FIRST, torch.zeros(c8_models.CHANNELS)), FIRST.removeprefix("model.")),
        (lambda scales: changed(scales, FIRST, NAN), FIRST.removeprefix("model.")),
    ],
    ids=["none", "missing", "no age", "stale", "a layer's", "bf16", "zeros", "nan"],
)
def test_scales_that_are_not_those_of_the_step_are_refused_and_the_next_sync_heals(built, broken, named):
    architecture, model = built
    refit, before = plugin.refit_of(model), addresses(model)
    with torch.device("cpu"):
        scales = broken(scales_of(8))
    with pytest.raises(RefitError) as error:
        sync(model, state_of(architecture, 8), scales)
    assert named in str(error.value)
    assert refit.why_not_servable()
    sync(model, state_of(architecture, 9), scales_of(9))
    refit.look()
    assert refit.why_not_servable() is None and addresses(model) == before
    holds(model, scales_of(9))


def lose(model) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Overwrite all memory of the model, C8's too, as a sleep does; what was there."""
    layouts = [one for layer in model.modules() for one in layouts_of(layer).values()]
    tensors = [*model.parameters(), *(tensor for one in layouts for tensor in (one.scale, *one.copies))]
    tensors += [tensor for layer in attentions(model) for tensor in tensors_of(layer).values()]
    places = {tensor.untyped_storage().data_ptr(): memory.storage(tensor) for tensor in tensors}
    kept = [(place, place.clone()) for place in places.values()]
    for place, _ in kept:
        place.fill_(0x55)
    return kept


@pytest.mark.each_version
@pytest.mark.parametrize("tags", [[None], [["weights"], ["kv_cache"]], [["kv_cache"], ["weights"]]], ids=str)
@pytest.mark.parametrize("level", [1, 2])
def test_after_a_sleep_they_are_right_in_any_order_of_waking_up(built, level, tags):
    architecture, model = built
    refit, before = plugin.refit_of(model), addresses(model)
    sync(model, state_of(architecture, 10), scales_of(10))
    refit.falls_asleep(level)
    kept = lose(model)
    refit.slept(level)
    assert refit.why_not_servable()
    for awake in tags:
        if level == 1 and (awake is None or "weights" in awake):
            for place, value in kept:
                place.copy_(value)
        refit.woke(awake)
        refit.cache_woke()  # what integrations/vllm/sleep.py calls
    holds(model, scales_of(10))
    refit.look()
    assert (refit.why_not_servable() is None) is (level == 1)
    sync(model, state_of(architecture, 11), scales_of(11))
    holds(model, scales_of(11))
    refit.look()
    assert refit.why_not_servable() is None and addresses(model) == before


def test_two_ranks_keep_the_scales_of_their_heads_as_vllm_ascend_cuts_them(tmp_path):
    c8_models.config_of("Qwen3ForCausalLM").save_pretrained(tmp_path / "model")
    two_ranks.run(Path(__file__).with_name("c8_one_rank.py"), folder=tmp_path)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for one in found:
        assert one["why"] is None and one["digest"] == found[0]["digest"]
        assert all(torch.equal(one["ours"][name], one["theirs"][name]) for name in one["theirs"])
    assert not any(torch.equal(found[0]["ours"][name], found[1]["ours"][name]) for name in found[0]["ours"])


@pytest.mark.each_version
def test_a_version_that_wants_a_dtype_for_it_is_not_served_without(tmp_path, monkeypatch):
    """0.30: its graphs would decode with no scales."""
    served = OF_ASCEND not in compat.cache_dtypes()
    monkeypatch.setattr(compat, "cache_dtypes", lambda: ())
    refused = pytest.raises(RefitError, match=line_naming("self_attn.attn", "kv_cache=int8", "kv_cache_dtype"))
    with nullcontext() if served else refused, c8_models.built(tmp_path, "Qwen3ForCausalLM") as (model, _):
        assert attentions(model)
