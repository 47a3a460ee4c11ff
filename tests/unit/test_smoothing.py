"""A profile at work in refits without any engine: what becomes of each tensor, of its bytes, and of the books."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naming import has_line_naming, line_naming

from ascend_quant import oracle
from ascend_quant.engine.smoothing import Smoothing
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.profile.rules import Profile, Rule
from ascend_quant.refit import Refit, RefitError
from ascend_quant.refit.plan import Entry
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight

FC, NORM, BIAS, HEAD = "fc.weight", "norm.weight", "fc.bias", "head.weight"


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def factor(count, seed):
    return 2 ** random(count, seed=seed)


def model(rows=8, length=6, seed=0, dtype=torch.bfloat16):
    """Names and tensors as a trainer sends them."""
    return [
        (FC, random(rows, length, seed=seed, dtype=dtype)),
        (NORM, random(length, seed=seed + 1, dtype=dtype)),
        (BIAS, random(rows, seed=seed + 2, dtype=dtype)),
        (HEAD, random(3, length, seed=seed + 3, dtype=dtype)),
    ]


def profile(rows=8, length=6, seed=9, scale=None):
    """Rules for all of `model` but its head."""
    smooth, out = factor(length, seed), factor(rows, seed + 1)
    return Profile(
        "int8",
        {
            FC: Rule(True, smooth, out, torch.full((rows,), 0.05) if scale is None else scale),
            NORM: Rule(False, 1 / smooth),
            BIAS: Rule(False, output_factor=out),
        },
    )


def residents(rows=8, length=6):
    """Of `model`; the head is quantized too."""
    return {
        FC: QuantizedWeight(FC, torch.zeros(rows, length, dtype=torch.int8), torch.zeros(rows, 1), length),
        NORM: ResidentWeight(NORM, torch.zeros(length, dtype=torch.bfloat16)),
        BIAS: ResidentWeight(BIAS, torch.zeros(rows, dtype=torch.bfloat16)),
        HEAD: QuantizedWeight(HEAD, torch.zeros(3, length, dtype=torch.int8), torch.zeros(3, 1), length),
    }


def push(refit, weights, held):
    """One refit, each tensor as a whole; by plan where there is one. Returns the names that had none."""
    unknown = []
    smoothing = refit.checks[0]
    with refit.session():
        for name, sent in refit.take(weights):
            for _, tensor in refit.place([(name, sent)]):
                unknown.append(name)
                slot = refit.batch.new_sources([(name, tensor.numel())])
                smoothing.note(name, bool(held[name].codes))
                how = smoothing.is_exact(name), smoothing.scale_of(name)
                entry = Entry(tensor.shape)
                for move in refit.write(slot, held[name], held[name].data, tensor, None, None, *how):
                    entry.add(held[name], move)
                refit.record(name, entry)
                refit.received.count(1, tensor.nbytes)
            refit.batch.flush()
    return unknown


def by_numpy(weights, rules, frozen):
    """What the residents must hold, by numpy's float32 from the rules alone; and how many codes are lost."""
    held, lost = {}, 0
    for name, tensor in weights:
        w = tensor.to(torch.bfloat16).float().numpy()
        rule = rules.get(name)
        if rule is not None and rule.input_factor is not None:
            w = w * rule.input_factor.numpy()
        if rule is not None and rule.output_factor is not None:
            out = rule.output_factor.numpy()
            w = w * (out[:, None] if w.ndim == 2 else out)
        assert w.dtype == np.float32
        if name not in (FC, HEAD):
            held[name] = torch.from_numpy(w.copy()).to(torch.bfloat16)
            continue
        absmax = np.abs(w).max(1)
        scale = (absmax.astype(np.float64) / 127).astype(np.float32)
        lowest = -127
        if frozen and rule is not None:
            scale, lowest = rule.scale.numpy(), -128
        ratio = np.zeros_like(w)
        np.divide(w, scale[:, None], out=ratio, where=scale[:, None] > 0)
        codes = np.rint(ratio)
        lost += int(((codes > 127) | (codes < lowest) | ((scale[:, None] == 0) & (w != 0))).sum())
        held[name] = torch.from_numpy(codes.clip(lowest, 127).astype(np.int8))
        held[f"{name}.scale"] = torch.from_numpy(scale)
    return held, lost


def assert_holds(held, weights, rules, frozen, receipt):
    expected, lost = by_numpy(weights, rules, frozen)
    for name, resident in held.items():
        assert torch.equal(resident.data, expected[name]), name
        if resident.codes:
            assert torch.equal(resident.scale.view(-1), expected[f"{name}.scale"]), name
    assert receipt.clamped == lost


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 999), st.booleans(), st.data())
def test_any_refit_by_loader_and_by_plan_holds_what_the_rules_say(rows, length, seed, frozen, data):
    scale = torch.tensor(data.draw(st.lists(st.sampled_from([1e-3, 0.02, 0.5]), min_size=rows, max_size=rows)))
    rules = profile(rows, length, seed, scale)
    held = residents(rows, length)
    refit = Refit(list(held.values()), checks=[Smoothing(rules, frozen)])
    addresses = {name: resident.data.data_ptr() for name, resident in held.items()}
    for step, dtype in enumerate((torch.bfloat16, torch.float32, torch.bfloat16)):
        weights = model(rows, length, seed + 10 * step, dtype)
        unknown = push(refit, weights, held)
        assert unknown == ([] if step else [name for name, _ in weights])
        assert_holds(held, weights, rules.rules, frozen, refit.last_receipt)
        assert refit.last_receipt.digest == refit.digest()
        sent = sum(tensor.nbytes for _, tensor in weights)
        assert (refit.last_receipt.tensors, refit.last_receipt.bytes) == (len(weights), sent)
    assert addresses == {name: resident.data.data_ptr() for name, resident in held.items()}


@pytest.mark.parametrize("frozen", [False, True])
def test_slices_of_row_and_column_parallel_layers_hold_slices_of_the_whole(frozen):
    rules = profile(8, 12, scale=torch.linspace(0.01, 0.08, 8))
    smoothing = Smoothing(rules, frozen)
    ((_, x_NK),) = smoothing.through([(FC, random(8, 12, seed=3, dtype=torch.bfloat16))])
    given = smoothing.scale_of(FC)
    whole = QuantizedWeight(FC, torch.zeros(8, 12, dtype=torch.int8), torch.zeros(8), 12)
    left = QuantizedWeight("left", torch.zeros(8, 5, dtype=torch.int8), torch.zeros(8), 12)
    lower = QuantizedWeight("lower", torch.zeros(3, 12, dtype=torch.int8), torch.zeros(3), 12)
    refit = Refit([whole, left, lower])
    with refit.session():
        for resident, shard, rows in ((whole, x_NK, slice(0, 8)), (left, x_NK[:, 2:7], slice(0, 8))):
            slot = refit.batch.new_sources([(FC, 96)])
            if frozen:  # no need of the whole rows
                refit.write(slot, resident, resident.data, shard, None, x_NK, True, given[rows])
            else:
                refit.write(slot, resident, resident.data, shard, x_NK, x_NK, True)
        slot = refit.batch.new_sources([(FC, 96)])
        refit.write(slot, lower, lower.data, x_NK[5:], None, x_NK, True, None if given is None else given[5:])
    assert torch.equal(left.data, whole.data[:, 2:7]) and torch.equal(left.scale, whole.scale)
    assert torch.equal(lower.data, whole.data[5:]) and torch.equal(lower.scale, whole.scale[5:])
    assert whole.data.unique().numel() > 20


def test_stacks_of_experts_with_frozen_scales_of_every_second_row():
    """As a loader may place gate rows of all experts at once: the scales have the rows' strides."""
    x_ENK = random(2, 6, 5, seed=1)
    scale_EN = torch.rand(2, 6, generator=torch.Generator().manual_seed(2)) / 50
    weight = QuantizedWeight("w13", torch.zeros(2, 3, 5, dtype=torch.int8), torch.zeros(2, 3, 1), 5)
    refit = Refit([weight])
    with refit.session():
        slot = refit.batch.new_sources([("w", 60)])
        refit.write(slot, weight, weight.data, x_ENK[:, ::2], None, x_ENK, True, scale_EN[:, ::2])
    codes, lost = oracle.quantize_given(x_ENK[:, ::2], scale_EN[:, ::2])
    assert torch.equal(weight.data, codes) and torch.equal(weight.scale.squeeze(-1), scale_EN[:, ::2])
    assert refit.last_receipt.clamped == int(lost.sum()) > 0


def test_what_has_no_rule_goes_on_untouched():
    smoothing = Smoothing(profile(), False)
    head = [(HEAD, random(3, 6)), ("other", torch.zeros(2, dtype=torch.int32))]
    assert smoothing.through(head) is head
    mixed = [*head, *model()[:1]]
    passed = list(smoothing.through(mixed))
    assert [pair[1] is before[1] for pair, before in zip(passed, mixed, strict=True)] == [True, True, False]
    assert passed[2][1].dtype == torch.float32
    assert all(tensor.dtype == torch.bfloat16 for name, tensor in smoothing.through(model()) if name != FC)


def test_one_tensor_at_a_time():
    """The next tensor is not taken before the last one was used: a trainer may reuse its memory."""
    taken = []

    def sent():
        for name, tensor in model():
            taken.append(name)
            yield name, tensor

    for count, (name, _) in enumerate(Smoothing(profile(), False).through(sent()), start=1):
        assert len(taken) == count and taken[-1] == name


def test_transposed_and_strided_tensors_leave_contiguous():
    w_NK = random(8, 6, dtype=torch.bfloat16)
    smoothing = Smoothing(profile(), False)
    ((_, expected),) = smoothing.through([(FC, w_NK)])
    for other in (w_NK.T.contiguous().T, torch.stack([w_NK, w_NK], dim=-1)[..., 1]):
        ((_, found),) = smoothing.through([(FC, other)])
        assert found.is_contiguous() and torch.equal(found, expected)


def test_a_stack_of_experts_leaves_expert_by_expert():
    names = [f"l.experts.{e}.{leaf}_proj.weight" for e in range(3) for leaf in ("gate", "up", "down")]
    shapes = {"gate": (4, 5), "up": (4, 5), "down": (5, 4)}
    single = {name: random(*shapes[name.split(".")[3][:-5]], seed=i) for i, name in enumerate(names)}
    rules = {
        name: Rule(True, factor(tensor.shape[1], i), factor(tensor.shape[0], 20 + i))
        for i, (name, tensor) in enumerate(single.items())
        if ".1.up" not in name  # which has no rule
    }
    parts = {leaf: [single[f"l.experts.{e}.{leaf}_proj.weight"] for e in range(3)] for leaf in shapes}
    gate_up = torch.stack([torch.cat(pair) for pair in zip(parts["gate"], parts["up"], strict=True)])
    stacks = [("l.experts.gate_up_proj", gate_up), ("l.experts.down_proj", torch.stack(parts["down"]))]
    smoothing = Smoothing(Profile("int8", rules), False)
    one_by_one = dict(smoothing.through(list(single.items())))
    found = dict(smoothing.through(stacks))
    assert found.keys() == set(names)
    assert all(torch.equal(found[name], one_by_one[name]) for name in names)
    smoothing.check({})
    assert Smoothing(profile(), False).through(stacks) is stacks


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (FC, torch.zeros(8, 7), r"fc\.weight: the profile's input_factor has shape \(6,\).*\(8, 7\) needs \(7,\)"),
        (FC, torch.zeros(9, 6), r"fc\.weight: the profile's output_factor has shape \(8,\).*needs \(9,\)"),
        (BIAS, torch.zeros(4), r"fc\.bias: the profile's output_factor has shape \(8,\)"),
        (FC, torch.zeros(2, 8, 6), r"fc\.weight: shape \(2, 8, 6\)"),
        (FC, torch.zeros(8, 6, dtype=torch.int8), r"fc\.weight: got torch\.int8; send BF16"),
        (FC, torch.zeros(8, 6, dtype=torch.float8_e4m3fn), r"fc\.weight: got torch\.float8_e4m3fn"),
        (FC, torch.zeros(6), r"fc\.weight: .* vector"),
    ],
)
def test_a_tensor_that_its_rule_does_not_fit_is_named(name, tensor, message):
    with pytest.raises(RefitError, match=message):
        list(Smoothing(profile(), False).through([(name, tensor)]))


@pytest.mark.parametrize(
    ("rule", "frozen", "message"),
    [
        (Rule(True, torch.tensor([1.0, float("inf")])), False, "input_factor has NaN or Inf"),
        (Rule(True, scale=torch.tensor([1.0, float("nan")])), False, "scale has NaN or Inf"),
        (Rule(True, scale=torch.tensor([1.0, -1.0])), True, "scale"),
        (Rule(True, scale=torch.tensor([1.0, 2.0**-140])), True, "scale"),
        (Rule(True), True, "no scale .* frozen_scales"),
        (Rule(True, scale=torch.tensor([1.0, 0.0])), True, "scale of row 1 is 0"),
        (Rule(True, torch.tensor([1.0, 0.0])), False, "input_factor .*0 to 1"),
        (Rule(False, output_factor=torch.tensor([1.0, -1e38])), False, r"output_factor .*1 to 1e\+38"),
        (Rule(True, torch.tensor([1, 2])), False, "input_factor"),
    ],
)
def test_rules_that_cannot_be_computed_with_are_refused(rule, frozen, message):
    with pytest.raises(BadCheckpoint, match=rf"some\.weight: .*{message}"):
        Smoothing(Profile("int8", {"some.weight": rule}), frozen)


def test_a_rule_that_meets_no_parameter_fails_the_refit():
    rules = profile().rules | {"fc.weigth": Rule(True), "l.experts.7.up_proj.weight": Rule(True)}
    held = residents()
    smoothing = Smoothing(Profile("int8", rules), False, may_miss=lambda name: ".experts." in name)
    refit = Refit(list(held.values()), checks=[smoothing])
    with pytest.raises(RefitError, match=line_naming("1 of the profile's 5 parameters", "fc.weigth")):
        push(refit, model(), held)
    assert has_line_naming(refit.why_not_servable(), "1 of the profile's 5 parameters")
    del smoothing.rules["fc.weigth"]
    push(refit, model(), held)
    refit.open()  # what the last refit has met does not count in the next
    with pytest.raises(RefitError, match=line_naming("3 of the profile's 4 parameters", "fc.bias")):
        smoothing.check({})


@pytest.mark.parametrize("frozen", [False, True])
def test_a_quantized_rule_of_a_parameter_that_the_engine_keeps_in_its_dtype(frozen):
    rules = {HEAD: Rule(True, factor(6, 1), factor(3, 2), torch.ones(3))}
    head = ResidentWeight(HEAD, torch.zeros(3, 6, dtype=torch.bfloat16))
    refit = Refit([head], checks=[Smoothing(Profile("int8", rules), frozen)])
    w_NK = random(3, 6, dtype=torch.bfloat16)
    push(refit, [(HEAD, w_NK)], {HEAD: head})
    x_NK = w_NK.float().numpy() * rules[HEAD].input_factor.numpy() * rules[HEAD].output_factor.numpy()[:, None]
    assert torch.equal(head.data, torch.from_numpy(x_NK).to(torch.bfloat16))


def test_a_checkpoint_that_was_smoothed_in_bf16_comes_back_code_by_code():
    """The tool rounds to BF16 after each factor; without that, codes near a tie differ."""
    w_NK, smooth, out = random(64, 96, dtype=torch.bfloat16), factor(96, 1), factor(64, 2)
    x_NK = ((w_NK.float() * smooth).bfloat16().float() * out[:, None]).bfloat16().float()
    scale = x_NK.abs().amax(1) / 127.5
    codes_NK = torch.from_numpy((x_NK.numpy() / scale.numpy()[:, None]).round()).clamp(-128, 127).to(torch.int8)
    found = {}
    for arithmetic in ("float32", "bfloat16"):
        rules = Profile("int8", {HEAD: Rule(True, smooth, out, scale)}, arithmetic=arithmetic)
        held = QuantizedWeight(HEAD, torch.zeros(64, 96, dtype=torch.int8), torch.zeros(64, 1), 96)
        push(Refit([held], checks=[Smoothing(rules, True)]), [(HEAD, w_NK)], {HEAD: held})
        found[arithmetic] = held.data
    assert torch.equal(found["bfloat16"], codes_NK) and not torch.equal(found["float32"], codes_NK)


def test_quantized_parameters_without_a_rule_are_told_once(caplog):
    caplog.set_level("INFO", logger="ascend_quant.engine.smoothing")
    held = residents()
    refit = Refit(list(held.values()), checks=[Smoothing(profile(), False)])
    for seed in range(3):
        push(refit, model(seed=seed), held)
    told = [record.message for record in caplog.records if record.name == "ascend_quant.engine.smoothing"]
    assert len(told) == 1 and has_line_naming(told[0], "1 quantized parameters", "no rule", ": head.weight")


def test_a_weight_that_overflows_when_it_is_multiplied_is_an_error():
    held = residents()
    rows = torch.full((8,), 2.0**32)
    rules = {FC: Rule(True, torch.full((6,), 2.0**32), rows), BIAS: Rule(False, output_factor=rows)}
    refit = Refit(list(held.values()), checks=[Smoothing(Profile("int8", rules), False)])
    weights = model()
    weights[0][1].fill_(1.0)[2, 3] = 2.0**64
    with pytest.raises(RefitError, match=r"fc\.weight: 1 of 48 elements are NaN or Inf"):
        push(refit, weights, held)
