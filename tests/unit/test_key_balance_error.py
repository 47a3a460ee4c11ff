"""What the balance of keys heals, on models with planted biases: the KL of an emulated cache beside a computed error.

The error of q k that a rounding with one scale a token and head makes has the variance scale^2 / 12 sum_i q_i^2, if
errors are spread evenly: it is computed in float64 from queries and keys as attention gets them, and the KL of rounded
keys has to go with it.
"""

import pytest
import torch
from outlier_models import biased_keys, dense, planted

from ascend_quant.mismatch import emulated_cache
from ascend_quant.mismatch.cache_rounding import ROUNDINGS, bf16, fp8, int8
from ascend_quant.mismatch.emulated_balance import factors_of

transformers = pytest.importorskip("transformers")

HEAD, WORDS = 64, 61
TEXTS = torch.randint(WORDS, (3, 64), generator=torch.Generator().manual_seed(1)).tolist()
Queries = list[tuple[torch.Tensor, torch.Tensor]]  # of each layer (B, H, T, D), and keys


def loaded(tmp_path, value: float, pairs: int) -> torch.nn.Module:
    planted(dense(head_dim=HEAD), biased_keys(value, pairs)).save_pretrained(tmp_path)
    return emulated_cache.load(str(tmp_path))


def kl(model: torch.nn.Module, rounding: emulated_cache.Rounding) -> float:
    policies = [
        torch.tensor([emulated_cache.logprobs(model, text[:4], text[4:], one) for text in TEXTS], dtype=torch.float64)
        for one in (emulated_cache.everywhere(bf16), rounding)
    ]
    difference = policies[0] - policies[1]
    return (torch.expm1(-difference) + difference).mean().item()


def keys_alone(rounding: emulated_cache.Rounding) -> emulated_cache.Rounding:
    return lambda x, layer, kind: rounding(x, layer, kind) if kind == "k" else bf16(x)


def computed(attended: Queries, factors: list[torch.Tensor]) -> float:
    """The error's variance over all layers, heads, and pairs of a token and one before it."""
    total = 0.0
    for (q, k), factor_GD in zip(attended, factors, strict=True):
        heads, groups = q.shape[1], k.shape[1]
        factor = factor_GD.double()[None, :, None]
        step_BGT = (k.double() / factor).abs().amax(-1) / 127
        size_BHT = (q.double() * factor.repeat_interleave(heads // groups, 1)).square().sum(-1)
        step_BHT = step_BGT.repeat_interleave(heads // groups, 1)
        both_BHTT = (size_BHT[..., :, None] * step_BHT[..., None, :] ** 2 / 12 / q.shape[-1]).tril()
        total += both_BHTT.sum().item()
    return total


def attended(model: torch.nn.Module, monkeypatch) -> Queries:
    """What attention is given."""
    found: Queries = []
    original = emulated_cache.attend

    def seen(module, query, key, *more, **named):
        found.append((query, key))
        return original(module, query, key, *more, **named)

    transformers.AttentionInterface.register(emulated_cache.NAME, seen)
    with torch.no_grad():
        model(torch.tensor(TEXTS), use_cache=False, cache_rounding=emulated_cache.everywhere(bf16))
    transformers.AttentionInterface.register(emulated_cache.NAME, original)
    return found


@pytest.mark.parametrize(("value", "pairs"), [(50.0, 1), (100.0, 2), (200.0, 4)])
def test_the_kl_falls_as_the_error_does(tmp_path, monkeypatch, value, pairs):
    model = loaded(tmp_path, value, pairs)
    factors, why_not = factors_of(model)
    assert why_not is None
    assert all(int((one[:, : HEAD // 2] > 2).sum()) == 2 * pairs for one in factors)  # two heads
    ones = [torch.ones_like(one) for one in factors]
    seen = attended(model, monkeypatch)
    roundings = {name: keys_alone(emulated_cache.balanced(int8, one)) for name, one in (("on", factors), ("off", ones))}
    falls = kl(model, roundings["off"]) / kl(model, roundings["on"])
    wanted = computed(seen, ones) / computed(seen, factors)
    print(f"bias {value:g} in {pairs} pairs: KL over {falls:.3g}, variance over {wanted:.3g}")
    assert wanted > HEAD / 2 / pairs / 4  # the large channels' own error is all that stays, or nearly
    assert wanted / 3 < falls < wanted * 3


def test_factors_that_are_not_those_of_the_keys_do_not_heal(tmp_path):
    model = loaded(tmp_path, 100.0, 2)
    factors, _ = factors_of(model)
    kls = {
        name: kl(model, emulated_cache.balanced(int8, one))
        for name, one in {
            "right": factors,
            "off": [torch.ones_like(one) for one in factors],
            "another head's": [one.flip(0) for one in factors],
            "another pair's": [one.roll(1, dims=1) for one in factors],
        }.items()
    }
    print(kls)
    assert kls["right"] < min(kls[name] for name in kls if name != "right") / 5


def test_fp8_gains_nothing_by_it(tmp_path):
    """Powers of two change no bit of a float but its exponent: for int8 alone the engine balances keys."""
    model = loaded(tmp_path, 100.0, 2)
    factors, _ = factors_of(model)
    ones = [torch.ones_like(one) for one in factors]
    on, off = (
        {name: kl(model, emulated_cache.balanced(each, which)) for name, each in (("fp8", fp8), ("int8", int8))}
        for which in (factors, ones)
    )
    print(on, off)
    assert on["fp8"] == pytest.approx(off["fp8"], rel=0.1)  # subnormal codes differ
    assert on["int8"] < on["fp8"] / 5 and off["int8"] > 5 * on["int8"]


def test_a_healthy_model_is_left_as_it_is(tmp_path):
    dense(head_dim=HEAD).save_pretrained(tmp_path)
    factors, why_not = factors_of(emulated_cache.load(str(tmp_path)))
    assert why_not is None and all(torch.equal(one, torch.ones_like(one)) for one in factors)


def test_the_report_has_both_kls(tmp_path):
    model = loaded(tmp_path, 100.0, 1)
    sequences = [{"prompt": text[:4], "response": text[4:]} for text in TEXTS]
    found = emulated_cache.emulate(str(tmp_path), "int8", sequences, lambda *_: None)
    assert found["balance"] == {
        "why_not": None,
        "pairs": 4 * 2 * HEAD // 2,
        "balanced": 8,
        "largest": found["balance"]["largest"],
    }
    reference = torch.tensor(found["exact"], dtype=torch.float64)
    for name, which in (("rounded", factors_of(model)[0]), ("unbalanced", None)):
        rounding = (
            emulated_cache.everywhere(ROUNDINGS["int8"]) if which is None else emulated_cache.balanced(int8, which)
        )
        difference = reference - torch.tensor(found[name], dtype=torch.float64)
        assert (torch.expm1(-difference) + difference).mean().item() == pytest.approx(kl(model, rounding), rel=1e-3)
    assert "unbalanced" not in emulated_cache.emulate(str(tmp_path), "fp8", sequences[:1], lambda *_: None)


def test_models_of_other_kinds_are_left_alone(tmp_path):
    model = loaded(tmp_path, 100.0, 1)
    model.config.rope_parameters = {**model.config.rope_parameters, "partial_rotary_factor": 0.5}
    assert factors_of(model)[0] == [] and "0.5" in factors_of(model)[1]
    model.config.model_type = "phi3"
    assert factors_of(model)[0] == [] and "phi3" in factors_of(model)[1]
