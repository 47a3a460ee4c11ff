"""Every kind of bad input: one clear error that names the parameter, no serving until a good refit, then healed."""

import gc
import weakref

import pytest
import torch
from engines import buckets, differing, engine, logprobs, model_of, post_load_pass, refit, resident
from models import checkpoint, expected, make, perturbed, save
from naming import line_naming
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngineFactory

from ascend_quant.engine.loading import Loading
from ascend_quant.integrations.vllm import attach
from ascend_quant.refit import RefitError
from ascend_quant.schemes import SCHEMES
from ascend_quant.transfer import prequantized

Q = "model.layers.1.self_attn.q_proj.weight"
O = "model.layers.1.self_attn.o_proj.weight"  # noqa: E741
NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"
EXPERT = "model.layers.1.mlp.experts.3.down_proj.weight"


def is_vllms_own(load) -> bool:
    """Whether a registered transfer is vLLM's, and all that it needs is installed."""
    try:
        return load().__module__.startswith("vllm.")
    except ImportError:  # modelexpress, in 0.32
        return False


PAST_THE_REFIT = sorted(  # sharded_rdt, nccl_m2n, sparse_nccl in 0.31
    name
    for name, load in WeightTransferEngineFactory._registry.items()
    if name not in attach.TRANSFERS and is_vllms_own(load)
)


@pytest.fixture(scope="module", params=["qwen2", "qwen3-moe"])
def loaded(request, tmp_path_factory):
    folder = make(request.param, tmp_path_factory.mktemp("models"))
    with engine(folder) as llm:
        yield llm, perturbed(checkpoint(folder), seed=3)


def nan_in(tensor):
    tensor = tensor.clone()
    tensor.view(-1)[7] = float("nan")
    return tensor


def replaced(name, change):
    return name, lambda state: {**state, name: change(state[name])}


CASES = {
    "missing": (Q, lambda state: {name: tensor for name, tensor in state.items() if name != Q}),
    "missing norm": (NORM, lambda state: {name: tensor for name, tensor in state.items() if name != NORM}),
    "extra": (
        "model.layers.1.self_attn.z_proj.weight",
        lambda s: {**s, "model.layers.1.self_attn.z_proj.weight": s[Q]},
    ),
    "extra layer": ("layers.77", lambda s: {**s, "model.layers.77.self_attn.q_proj.weight": s[Q]}),
    "too many rows": replaced(Q, lambda tensor: torch.cat([tensor, tensor])),
    "too few rows": replaced(Q, lambda tensor: tensor[:-2]),
    "too many columns": replaced(O, lambda tensor: torch.cat([tensor, tensor], 1)),
    "too few columns": replaced(O, lambda tensor: tensor[:, :-2].contiguous()),
    "one column": replaced(O, lambda tensor: tensor[:, :1].contiguous()),
    "one-element norm": replaced(NORM, lambda tensor: tensor[:1]),
    "NaN": replaced(Q, nan_in),
    "Inf": replaced(O, lambda tensor: nan_in(tensor).nan_to_num(nan=float("-inf"))),
    "NaN in a norm": replaced(NORM, nan_in),
    "int8 codes": replaced(Q, lambda tensor: tensor.to(torch.int8)),
    "scales": (f"{Q}_scale", lambda state: {**state, f"{Q}_scale": torch.ones(1)}),
    "an integer norm": replaced(NORM, lambda tensor: tensor.to(torch.int16)),
    "an fp8 embedding": replaced(EMBEDDING, lambda tensor: tensor.to(torch.float8_e4m3fn)),
    "a complex head": ("lm_head.weight", lambda s: {**s, "lm_head.weight": s["lm_head.weight"].to(torch.complex64)}),
    "float64 beyond BF16": replaced(NORM, lambda tensor: tensor.double() * 1e300),
    "a list": replaced(Q, lambda tensor: tensor.tolist()),
    "a sparse tensor": replaced(Q, lambda tensor: tensor.to_sparse()),
    "a meta tensor": replaced(O, lambda tensor: tensor.to("meta")),
}
EXPERT_CASES = {
    "expert missing": (EXPERT, lambda state: {name: tensor for name, tensor in state.items() if name != EXPERT}),
    "expert out of range": ("experts.99", lambda s: {**s, EXPERT.replace(".3.", ".99."): s[EXPERT]}),
    "expert with fewer rows": replaced(EXPERT, lambda tensor: tensor[:-1]),
    "expert with fewer columns": replaced(EXPERT, lambda tensor: tensor[:, :-1].contiguous()),
    "expert with more columns": replaced(EXPERT, lambda tensor: torch.cat([tensor, tensor], 1)),
    "NaN in an expert": replaced(EXPERT, nan_in),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_refit(loaded, case):
    refused_then_healed(loaded, *CASES[case])


@pytest.mark.parametrize("loaded", ["qwen3-moe"], indirect=True)
@pytest.mark.parametrize("case", EXPERT_CASES)
def test_bad_expert(loaded, case):
    refused_then_healed(loaded, *EXPERT_CASES[case])


K = "model.layers.0.self_attn.k_proj.weight"


@pytest.mark.parametrize("loaded", ["qwen2"], indirect=True)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        (EMBEDDING, lambda tensor: torch.cat([tensor, tensor[:8]])),  # a vocabulary that has grown
        (EMBEDDING, lambda tensor: tensor[:-4]),
        ("lm_head.weight", lambda tensor: tensor[:-4]),
        (K, lambda tensor: tensor.t().contiguous()),
        (NORM, lambda tensor: tensor[None]),
    ],
)
def test_a_tensor_of_another_shape_is_told_the_engines(loaded, name, change):
    llm, state = loaded
    sent = change(state[name])
    shapes = str(tuple(sent.shape)), str(tuple(state[name].shape))
    with pytest.raises(RefitError, match=line_naming(name, *shapes)), refit(llm).session():
        model_of(llm).load_weights(list({**state, name: sent}.items()))
    healed(llm, state)


@pytest.mark.parametrize("loaded", ["qwen2"], indirect=True)
@pytest.mark.parametrize(
    ("renamed", "told"),
    [
        (lambda name: f"module.{name}", "removeprefix('module.')"),
        (lambda name: f"_orig_mod.{name}", "removeprefix('_orig_mod.')"),
        (lambda name: f"base_model.model.{name}", "base_model.model. … merge_and_unload"),
        (lambda name: name.replace("_proj.", "_proj.base_layer."), "base_layer. … merge_and_unload"),
        (lambda name: name.replace("s.1.", "s.1._fsdp_wrapped_module."), "replace('_fsdp_wrapped_module.', '')"),
        (lambda name: name.removeprefix("model."), "'model.' + name"),
    ],
)
def test_names_that_a_wrapper_has_changed_are_told_how_to_be_sent(loaded, renamed, told):
    llm, state = loaded
    with pytest.raises(RefitError, match=line_naming(told)) as caught, refit(llm).session():
        model_of(llm).load_weights([(renamed(name), tensor) for name, tensor in state.items()])
    assert len(str(caught.value)) <= 300
    healed(llm, state)


def refused_then_healed(loaded, name, spoil):
    llm, state = loaded
    refused(llm, name, spoil(state).items())
    healed(llm, state)


def test_a_plan_sees_what_is_no_tensor_any_more(loaded):
    """The second refit of the same list is by plan, which loaders never see."""
    llm, state = loaded
    for spoil in (lambda tensor: tensor.to("meta"), lambda tensor: tensor.tolist(), lambda tensor: tensor.short()):
        healed(llm, state)
        with pytest.raises(RefitError, match=r"q_proj\.weight"), refit(llm).session():
            model_of(llm).load_weights(list({**state, Q: spoil(state[Q])}.items()))
    healed(llm, state)


@pytest.mark.parametrize("loaded", ["qwen2"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8, torch.bool, torch.int16, torch.bfloat16])
def test_a_plan_sees_codes_of_another_dtype(loaded, dtype):
    """They would be cast as values: other codes, and scales of nothing, with digests that fit what was sent."""
    llm, state = loaded
    floats = {name: tensor for name, tensor in state.items() if name != O}
    [(name, codes)] = prequantized.coded([(O, state[O])], SCHEMES["int8"])
    for _ in range(2):
        with refit(llm).session():
            model_of(llm).load_weights(list({**floats, name: codes}.items()))
        assert differing(resident(llm), expected(state)) == []
    spoilt = codes.view(dtype) if dtype.itemsize == 1 and dtype != torch.bool else codes.to(dtype)
    with pytest.raises(RefitError, match=r"o_proj\.weight:int8"), refit(llm).session():
        model_of(llm).load_weights(list({**floats, name: spoilt}.items()))
    healed(llm, state)


@pytest.mark.parametrize("loaded", ["qwen2"], indirect=True)
@pytest.mark.parametrize("part", ["q", "k", "v"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_rank_that_could_take_its_part_of_more_rows(loaded, part, bias, monkeypatch):
    """With two data-parallel ranks half of a tensor may be a rank's share of experts; of a linear layer it is not."""
    llm, state = loaded
    monkeypatch.setattr(attach, "Loading", lambda refit, storages, shards, *rest: Loading(refit, storages, 2, *rest))
    name = f"model.layers.1.self_attn.{part}_proj.{'bias' if bias else 'weight'}"
    refused(llm, name, {**state, name: torch.cat([state[name]] * 2)}.items())
    healed(llm, state)


@pytest.mark.parametrize("loaded", ["qwen2"], indirect=True)
@pytest.mark.parametrize("name", [O, O.replace("self_attn.o", "mlp.down")])
def test_a_rank_that_could_take_its_part_of_more_columns(loaded, name, monkeypatch):
    llm, state = loaded
    monkeypatch.setattr(attach, "Loading", lambda refit, storages, shards, *rest: Loading(refit, storages, 2, *rest))
    refused(llm, name, {**state, name: torch.cat([state[name]] * 2, 1)}.items())
    healed(llm, state)


@pytest.mark.parametrize("loaded", ["qwen2"], indirect=True)
def test_parameters_that_were_sent_are_let_go_of(loaded):
    """In a trainer's process, with its gradients on."""
    llm, state = loaded
    for _ in range(2):
        parameters = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in state.items()}
        kept = [weakref.ref(parameter) for parameter in parameters.values()]
        with torch.enable_grad(), refit(llm).session():
            model_of(llm).load_weights(list(parameters.items()))
        del parameters
        gc.collect()
        assert not [one for one in kept if one() is not None]
    assert not any(tensor.requires_grad for tensor in resident(llm).values())


def test_values_count_not_how_they_lie_in_memory(loaded):
    """Elements that share their memory, float64, a conjugate's sign: the bytes are those of the plain tensors."""
    llm, state = loaded
    odd = {NORM: torch.full((1,), 0.75).expand(128), Q: state[Q][:1].expand(128, 128), O: torch._neg_view(state[O])}
    odd |= {EMBEDDING: state[EMBEDDING].double() / 3}
    plain = {name: tensor.clone().contiguous() for name, tensor in odd.items()}
    assert odd[NORM].stride() == (0,) and odd[O].is_neg()
    for _ in range(2):
        model_of(llm).load_weights(list({**state, **odd}.items()))
        held = {**state, **{name: tensor.to(torch.bfloat16) for name, tensor in plain.items()}}
        assert differing(resident(llm), expected(held)) == []
        assert refit(llm).last_receipt.digest == refit(llm).digest()


HEAD = "lm_head.weight"
HEADS = {  # what comes as the head of a model that is tied to its embedding
    "other values": lambda embedding: embedding * 2,
    "one element": lambda embedding: torch.cat([embedding[:-1], embedding[-1:] + 1]),
    "NaN": lambda embedding: embedding * float("nan"),
    "fewer rows": lambda embedding: embedding[:-1],
    "integers": lambda embedding: embedding.to(torch.int16),
}


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    folder = make("qwen2-tied", tmp_path_factory.mktemp("models"))
    with engine(folder) as llm:
        yield llm, perturbed(checkpoint(folder), seed=3)


@pytest.mark.parametrize("first", [True, False])
def test_a_tied_head_must_be_the_embedding(tied, first):
    llm, state = tied
    embedding = state[EMBEDDING]
    for head in (embedding, embedding.float()):
        for _ in range(2):  # through the loaders, by plan
            with refit(llm).session():
                model_of(llm).load_weights({HEAD: head, **state}.items() if first else {**state, HEAD: head}.items())
            assert differing(resident(llm), expected(state)) == []
    for spoil in HEADS.values():
        sent = {HEAD: spoil(embedding), **state} if first else {**state, HEAD: spoil(embedding)}
        with pytest.raises(RefitError, match=r"lm_head\.weight|embed_tokens\.weight: got"), refit(llm).session():
            model_of(llm).load_weights(list(sent.items()))
        assert refit(llm).why_not_servable()
    with pytest.raises(RefitError, match=r"lm_head\.weight: sent twice"), refit(llm).session():
        model_of(llm).load_weights([*state.items(), (HEAD, embedding), (HEAD, embedding)])
    healed(llm, state)


def test_buckets_without_a_session_may_end_with_what_has_no_place(tied):
    """The refit closes with the last tensor that has one; what follows begins no other refit."""
    llm, state = tied
    embedding = state[EMBEDDING]
    for _ in range(2):
        for rest in ([(HEAD, embedding)], [(HEAD, embedding.float())], []):
            model_of(llm).load_weights(list(state.items()))
            number = refit(llm).last_receipt.number
            model_of(llm).load_weights(rest)
            assert refit(llm).why_not_servable() is None and refit(llm).last_receipt.number == number
        model_of(llm).load_weights([(HEAD, embedding * 2)])  # of the next step, as it seems
        assert refit(llm).why_not_servable()
        model_of(llm).load_weights(list({name: 2 * tensor for name, tensor in state.items()}.items()))
        assert refit(llm).why_not_servable() is None
    healed(llm, state)


@pytest.mark.parametrize("name", ["lm_head.bias", "lm_head.foo"])
def test_a_tied_head_has_a_weight_alone(tied, name):
    llm, state = tied
    with pytest.raises(RefitError, match=name), refit(llm).session():
        model_of(llm).load_weights({**state, name: torch.zeros(61)}.items())
    healed(llm, state)


def test_a_shard_written_twice(loaded):
    llm, state = loaded
    refused(llm, Q, [*list(state.items())[:-1], (Q, state[Q])])
    healed(llm, state)


@pytest.mark.parametrize(
    "junk", [lambda state: dict(state), lambda state: [*[*state.items()][:3], Q], lambda state: iter(state)]
)
def test_weights_that_are_no_pairs(loaded, junk):
    llm, state = loaded
    with pytest.raises(RefitError, match="pairs"):
        model_of(llm).load_weights(junk(state))
    healed(llm, state)


def refused(llm, name, weights):
    with pytest.raises(Exception) as caught:
        for item in weights:
            model_of(llm).load_weights([item])
        post_load_pass(llm)
    assert name.split(".")[-2] in str(caught.value) and ".".join(name.split(".")[1:3]) in str(caught.value)
    with pytest.raises(RefitError, match="refuses to generate"):
        logprobs(llm)


def healed(llm, state):
    for bucket in buckets(state):
        model_of(llm).load_weights(bucket)
    assert differing(resident(llm), expected(state)) == []
    assert torch.isfinite(logprobs(llm)).all()


def test_a_loader_called_behind_the_hook_is_refused(loaded):
    llm, state = loaded
    parameter = model_of(llm).get_parameter("model.layers.1.self_attn.o_proj.weight")
    with pytest.raises(RefitError, match=r"o_proj.*model\.load_weights"):
        parameter.weight_loader(parameter, state[O])
    parameter.data.copy_(state[O])  # the silent cast to zeros that every hook can be bypassed by
    with pytest.raises(RefitError, match="outside a refit"):
        post_load_pass(llm)
    healed(llm, state)


def test_a_half_finished_refit_refuses_and_the_next_one_starts_anew(loaded):
    llm, state = loaded
    model_of(llm).load_weights(list(state.items())[:5])
    with pytest.raises(RefitError, match="refit is open"):
        logprobs(llm)
    with pytest.raises(RefitError, match=r"missing .*: .*model\."):
        post_load_pass(llm)
    healed(llm, state)


def test_an_incomplete_checkpoint_does_not_start(tmp_path):
    folder = make("qwen2", tmp_path)
    state = checkpoint(folder)
    save({name: tensor for name, tensor in state.items() if name != Q}, folder)
    with pytest.raises(Exception, match=r"missing.*layers\.1\.self_attn\.q_proj\.weight"), engine(folder):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "int7"}, "unknown scheme 'int7'; this version has: int8, fp8, .*, int4_g32, bf16"),
        (
            {"quantization_config": {"ignored": []}},
            "unknown ascend_quant option 'ignored'; .*: scheme, ignore",
        ),
        ({"quantization_config": {"ignore": "re:.*o_proj"}}, r"ignore='re:\.\*o_proj': give a list"),
        ({"quantization_config": {"ignore": ["re:.*o_prj"]}}, r"'re:\.\*o_prj' matches no layer"),
    ],
)
def test_bad_options(tmp_path, options, message):
    with pytest.raises(Exception, match=message), engine(make("qwen2", tmp_path), **options):
        pass


@pytest.mark.parametrize("transfer", PAST_THE_REFIT)
def test_a_transfer_that_would_write_past_the_refit_is_refused_by_name(tmp_path, transfer):
    settings = {"weight_transfer_config": WeightTransferConfig(backend=transfer)}
    with pytest.raises(RefitError, match=transfer), engine(make("qwen2", tmp_path), **settings):
        pass


def test_dummy_weights_serve_until_the_first_refit_and_a_partial_one_is_refused(tmp_path):
    folder = make("qwen2", tmp_path)
    with engine(folder, load_format="dummy") as llm:
        logprobs(llm)
        refused(llm, Q, [(name, tensor) for name, tensor in checkpoint(folder).items() if name != Q])
        healed(llm, checkpoint(folder))
        assert refit(llm).last_receipt.number == 1
