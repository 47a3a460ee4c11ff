"""The KL of a quantized KV cache: its rounding, its emulation, its parts by position, and what follows from them."""

import math
from types import SimpleNamespace

import pytest
import torch
from naming import has_line_naming
from outlier_models import dense, planted

from ascend_quant import oracle
from ascend_quant.mismatch import cache_support, cache_verdict, emulated_cache
from ascend_quant.mismatch.cache_rounding import ROUNDINGS, fp8, int8
from ascend_quant.mismatch.cache_split import PARTS, engines, split
from ascend_quant.mismatch.cache_verdict import above_noise, dominant, growing, verdict
from ascend_quant.mismatch.engines import Task
from ascend_quant.mismatch.measure import Asked, check_cache, reference_task, sampling_task, trial_task
from ascend_quant.mismatch.positions import by_position
from ascend_quant.mismatch.settings import OptionError, Settings
from ascend_quant.schemes import get_scheme

transformers = pytest.importorskip("transformers")


def keys(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def test_int8_is_the_nearest_code_of_each_token_and_head():
    x_THD = keys(7, 3, 32)
    x_THD[2, 1] = 0
    codes, scale = oracle.quantize(x_THD.flatten(0, 1), get_scheme("int8"))
    found = int8(x_THD)
    assert torch.equal(found.flatten(0, 1), oracle.dequantize(codes, scale)) and not found[2, 1].any()
    for token, head in ((0, 0), (3, 2), (6, 1)):
        row = x_THD[token, head].tolist()
        step = max(map(abs, row)) / 127
        assert found[token, head].tolist() == pytest.approx([round(one / step) * step for one in row], abs=step / 1e4)


def test_fp8_is_the_nearest_of_all_codes():
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    codes = codes[codes.isfinite()].unique()
    x = (keys(500) * 20).bfloat16().float()
    near = (x[:, None] - codes).abs()
    assert torch.equal((fp8(x) - x).abs(), near.amin(-1))
    assert fp8(torch.tensor([1e4, -1e4])).tolist() == [448.0, -448.0]
    assert fp8(torch.tensor([1e4]), scale=32.0).item() == pytest.approx(1e4, rel=1 / 16)


def cache_scales(made: torch.nn.Module) -> list[tuple[float, float]]:
    pytest.importorskip("vllm")
    from ascend_quant.mismatch.cache_scales import scales_of

    return scales_of(made)


class RoundedCache(transformers.DynamicCache):
    """A cache that keeps what `rounding` leaves."""

    rounding = staticmethod(lambda x: x)

    def update(self, keys, values, *place, **more):
        return super().update(self.rounding(keys), self.rounding(values), *place, **more)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    dense().save_pretrained(folder)
    return str(folder)


def sequences(count: int = 3, prompt: int = 4, response: int = 12) -> list[dict]:
    drawn = torch.randint(0, 61, (count, prompt + response), generator=torch.Generator().manual_seed(1)).tolist()
    return [{"prompt": row[:prompt], "response": row[prompt:], "logprobs": [0.0] * response} for row in drawn]


@pytest.mark.parametrize("cache", ["int8", "fp8"])
def test_the_emulation_is_decoding_from_a_rounded_cache(model, cache):
    """Token by token through transformers' own cache, which rounds what it is given."""
    given, steps, distances = sequences(), [], {}
    found = emulated_cache.emulate(model, cache, given, lambda done, total: steps.append((done, total)))
    assert steps == [(1, 3), (2, 3), (3, 3)]
    other = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for name, rounding in (("exact", ROUNDINGS["auto"]), ("rounded", ROUNDINGS[cache])):
        for one, logprobs in zip(given, found[name], strict=True):
            kept, tokens, wanted = RoundedCache(), one["prompt"] + one["response"], []
            kept.rounding = rounding
            with torch.no_grad():
                for place, token in enumerate(tokens[:-1]):
                    logits = other(torch.tensor([[token]]), past_key_values=kept, use_cache=True).logits[0, -1]
                    wanted.append(logits.log_softmax(-1)[tokens[place + 1]].item())
            away = torch.tensor(logprobs) - torch.tensor(wanted[len(one["prompt"]) - 1 :])
            distances[name] = max(distances.get(name, 0.0), away.abs().max().item())
    effect = (torch.tensor(found["exact"]) - torch.tensor(found["rounded"])).abs().mean().item()
    assert max(distances.values()) < effect / 4  # a sum in another order may round a key to another code


def kl_of(folder: str, cache: str) -> float:
    """Without a balance of the keys."""
    found = emulated_cache.emulate(folder, cache, sequences(4, 4, 40), lambda *_: None)
    difference = torch.tensor(found["exact"]) - torch.tensor(found.get("unbalanced", found["rounded"]))
    return (torch.expm1(-difference) + difference).mean().item()


def test_channels_that_lie_out_hurt_int8_above_all(model, tmp_path):
    """A bias of the keys, as Qwen2.5 has: a token's scale follows it, and the other channels become coarse."""

    def bias(made):
        for block in made.model.layers:
            block.self_attn.k_proj.bias.view(2, -1)[:, 5] = 60.0

    planted(dense(), bias).save_pretrained(tmp_path)
    healthy, outlying = ({name: kl_of(where, name) for name in ("int8", "fp8")} for where in (model, str(tmp_path)))
    assert healthy["int8"] < healthy["fp8"] / 3
    assert outlying["int8"] > 20 * healthy["int8"]
    assert outlying["int8"] / outlying["fp8"] > 5 * healthy["int8"] / healthy["fp8"]


def test_buckets_against_every_token_by_hand():
    generator = torch.Generator().manual_seed(2)
    prompts, lengths, edges = [3, 10, 1], [20, 6, 2], (8, 16)
    reference = [-torch.rand(n, generator=generator, dtype=torch.float64) for n in lengths]
    other = [one + 0.1 * torch.randn(len(one), generator=generator, dtype=torch.float64) for one in reference]
    found = by_position(prompts, reference, other, edges)
    assert [(one.first, one.end) for one in found] == [(0, None), (0, 8), (8, 16), (16, None)]
    for bucket in found:
        terms, owners = [], set()
        for number, (prompt, one, two) in enumerate(zip(prompts, reference, other, strict=True)):
            for place in range(len(one)):
                if bucket.first <= prompt + place < (bucket.end or math.inf):
                    ratio = (two[place] - one[place]).item()
                    terms.append(math.exp(ratio) - 1 - ratio)
                    owners.add(number)
        assert (bucket.tokens, bucket.sequences) == (len(terms), len(owners))
        assert bucket.k3_kl == pytest.approx(sum(terms) / len(terms), abs=1e-12)
        assert (bucket.standard_error is None) == (len(owners) < 2)
    assert sum(one.tokens for one in found[1:]) == found[0].tokens == sum(lengths)
    assert [one.first for one in by_position([3], [reference[2]], [other[2]], edges)] == [0, 0]  # what is empty is out


BALANCE = {"why_not": None, "pairs": 64, "balanced": 7, "largest": 32.0}


def made_split(cuda: bool = False, emulated: bool = False, scheme: str | None = "int8", cache: str = "fp8"):
    """A split of engines whose log-probabilities are the reference's less a number of their own; what they got."""
    asked, given = {}, sequences()
    own = {"sampled": given, "scored": [[-0.01] * 12] * 3}
    shift = {"kernel": 0.02, "cache": 0.05, "weights": 0.1, "both": 0.12}

    def run(name: str, task: Task) -> dict:
        asked[name.split()[0]] = task
        if task.job == "emulate":
            exact, rounded, unbalanced = ([[value] * 12] * 3 for value in (0.0, -0.05, -0.2))
            return {"exact": exact, "rounded": rounded, "unbalanced": unbalanced, "balance": BALANCE}
        return {"forced": [[-shift[name.split()[0]]] * 12] * 3, "scales": [(0.5, 2.0)], "balance": BALANCE}

    def engine(scheme: str, cache: str) -> dict:
        return {"scheme": scheme, "kv_cache": cache}

    task = Task("emulate", {}, [], {}, given) if emulated else None
    return split(own, cache, scheme, (6, 10), 2.0, run, engine, task, cuda), asked


def test_each_part_has_its_engine():
    found, asked = made_split()
    assert [part["name"] for part in found["parts"]] == ["noise", "cache", "weights", "both"]
    options = {name: (task.engine["scheme"], task.engine["kv_cache"]) for name, task in asked.items()}
    assert options == {"cache": ("bf16", "fp8"), "weights": ("int8", "auto"), "both": ("int8", "fp8")}
    scales = {part["name"]: part["scales"] for part in found["parts"]}
    assert scales == {"noise": None, "cache": [(0.5, 2.0)], "weights": None, "both": [(0.5, 2.0)]}
    assert all(part["balance"] is None for part in found["parts"])
    for name, task in asked.items():
        assert task.job == "force" and task.sequences == sequences() and task.engine["logits_processors"], name
    kl = {part["name"]: part["buckets"][0]["k3_kl"] for part in found["parts"]}
    for name, shift in (("noise", 0.01), ("cache", 0.05), ("weights", 0.1), ("both", 0.12)):
        assert kl[name] == pytest.approx(math.exp(-shift) - 1 + shift)
    assert [(b["first"], b["end"]) for b in found["parts"][0]["buckets"]] == [(0, None), (0, 6), (6, 10), (10, None)]


def test_the_kernel_is_a_part_where_the_cache_has_kernels_of_its_own():
    found, asked = made_split(cuda=True, cache="int8")
    assert [part["name"] for part in found["parts"]] == list(PARTS)
    assert asked["kernel"].engine["attention_backend"] and asked["kernel"].engine["kv_cache"] == "auto"
    balances = {part["name"]: part["balance"] for part in found["parts"]}
    assert balances == {"noise": None, "kernel": None, "cache": BALANCE, "weights": None, "both": BALANCE}
    assert "kernel" not in made_split(cuda=True, cache="fp8")[1]
    assert list(made_split(scheme=None)[1]) == ["cache"]
    assert not list(engines("fp8", None, lambda *_: {}, emulated=True, cuda=True))


def test_an_emulated_cache_has_no_engine_and_no_noise():
    found, asked = made_split(emulated=True, cache="int8")
    assert set(asked) == {"cache", "weights"} and asked["cache"].job == "emulate"
    assert [part["name"] for part in found["parts"]] == ["noise", "cache", "weights"]
    assert [part["emulated"] for part in found["parts"]] == [False, True, False]
    kl = {part["name"]: part["buckets"][0]["k3_kl"] for part in found["parts"]}
    assert above_noise(found)["cache"] == kl["cache"]
    without = found["parts"][1]["balance"].pop("k3_kl_without")
    assert without == pytest.approx(math.exp(-0.2) - 1 + 0.2) and found["parts"][1]["balance"] == BALANCE
    assert above_noise(found)["weights"] == pytest.approx(kl["weights"] - kl["noise"])


def of(**kl: float | tuple[float, ...]) -> dict:
    """A split with these figures; of a tuple, the first is that of all positions."""
    parts = []
    for name, values in kl.items():
        values = values if isinstance(values, tuple) else (values,)
        buckets = [{"first": 0, "end": None, "k3_kl": value, "tokens": 100} for value in values]
        parts.append({"name": name, "emulated": False, "buckets": buckets})
    return {"kv_cache": "int8", "parts": parts}


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (of(noise=1e-6, cache=1e-5, weights=1e-4, both=1.1e-4), "weights"),
        (of(noise=1e-6, cache=5e-3, weights=1e-4, both=5e-3), "cache"),
        (of(noise=1e-6, kernel=2e-4, cache=1.5e-4, weights=1e-4, both=3e-4), "kernel"),
        (of(noise=1e-5, cache=2e-5, weights=2.9e-5, both=3e-5), "noise"),
        (of(noise=0.0, cache=0.0, weights=0.0, both=0.0), "noise"),
        (of(noise=1e-6, cache=1e-4), "cache"),
    ],
)
def test_the_largest_part_is_named(found, name):
    assert dominant(found) == name
    assert has_line_naming(next(verdict(found)), "KV cache", name)


def test_the_kernels_part_is_not_the_caches():
    found = of(noise=1e-6, kernel=2e-4, cache=5e-4, weights=1e-4, both=6e-4)
    assert above_noise(found) == pytest.approx({"kernel": 1.99e-4, "cache": 3e-4, "weights": 0.99e-4})
    assert above_noise(of(noise=1e-6, cache=5e-4))["cache"] == pytest.approx(4.99e-4)


def test_what_to_do_is_for_the_cache_at_hand():
    worse = of(noise=1e-6, cache=5e-3, weights=1e-4, both=5e-3)
    assert has_line_naming("\n".join(verdict(worse)), "--kv-cache fp8") and cache_verdict.NEAR > 1
    assert has_line_naming("\n".join(verdict(worse | {"kv_cache": "fp8"})), "--kv-cache int8")


@pytest.mark.parametrize(
    ("balance", "words"),
    [
        ({**BALANCE, "why_not": "reason-7"}, ("reason-7", "off")),
        (BALANCE, ("7 of 64", "32")),
        ({**BALANCE, "balanced": 0}, ("64", "on")),
        ({**BALANCE, "k3_kl_without": 0.3}, ("0.3", "it heals")),
        ({**BALANCE, "k3_kl_without": 1e-7}, ("1e-07", "does not heal")),
    ],
)
@pytest.mark.parametrize("kl", [1e-6, 5e-3])
def test_whether_keys_are_balanced_is_said(balance, words, kl):
    found = of(noise=1e-6, cache=kl, weights=1e-6, both=kl)
    found["parts"][1]["balance"] = balance
    assert has_line_naming("\n".join(verdict(found)), *words)
    assert not has_line_naming("\n".join(verdict(of(noise=1e-6, cache=kl))), "Balance")


def test_a_part_that_grows_with_the_position_is_named():
    found = of(noise=1e-6, cache=(2e-3, 1e-5, 5e-3), weights=(1e-4, 1e-4, 1e-4), both=2e-3)
    assert growing(found["parts"][1]) == pytest.approx(500) and growing(found["parts"][2]) == pytest.approx(1)
    assert growing(found["parts"][3]) is None
    lines = [line for line in verdict(found) if "500" in line]
    assert len(lines) == 1 and "cache" in lines[0]


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"kv_lora_rank": 512}, {"int8", "fp8"}),
        ({"layer_types": ["full_attention", "linear_attention"]}, {"int8", "fp8"}),
        ({"layer_types": ["full_attention", "mamba"]}, {"int8", "fp8"}),
        ({"layer_types": ["full_attention", "sliding_attention"]}, {"int8"}),
        ({"layer_types": ["full_attention"] * 3}, set()),
        ({}, set()),
    ],
)
def test_models_whose_cache_stays_bf16(config, refused):
    text = SimpleNamespace(**config)
    whole = SimpleNamespace(get_text_config=lambda: text)
    check_cache(Settings("m", "int8"), whole)
    for cache in ("int8", "fp8"):
        assert (cache_support.no_cache_for(whole, cache) is not None) == (cache in refused)
        settings = Settings("m", "int8", kv_cache=cache, emulate_cache=True)
        if cache in refused:
            with pytest.raises(OptionError, match=f"--kv-cache {cache}"):
                check_cache(settings, whole)
        else:
            check_cache(settings, whole)


def test_what_this_machines_engines_lack(monkeypatch):
    config = SimpleNamespace(get_text_config=SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match=r"--kv-cache int8.*--emulate-cache"):
        check_cache(Settings("m", "int8", kv_cache="int8"), config)
    check_cache(Settings("m", "int8", kv_cache="int8", emulate_cache=True), config)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: False)
    assert "AVX-512" in cache_support.no_engine_with("fp8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert "sm80" in cache_support.no_engine_with("fp8") and cache_support.no_engine_with("int8") is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert cache_support.no_engine_with("fp8") is None


def cache_option(task: Task) -> str | None:
    """What the engine is told of its cache, by this plugin's option."""
    assert "kv_cache_dtype" not in task.engine
    return task.engine["hf_overrides"]["quantization_config"].get("kv_cache")


def test_scales_are_read_off_the_attention_layers():
    layer = torch.nn.Module()
    layer.register_buffer("_k_scale", torch.tensor(0.25))
    layer.register_buffer("_v_scale", torch.tensor(4.0))
    made = torch.nn.ModuleList([torch.nn.Linear(2, 2), layer, layer.__class__()])
    assert cache_scales(made) == [(0.25, 4.0)]


def test_the_rollouts_engines_have_the_cache_and_the_reference_has_not():
    asked, given = Asked([[1], [2]], 0, [7], 50), sequences()
    settings = Settings("m", "int8", kv_cache="fp8")
    tasks = sampling_task(settings, asked), trial_task(settings, asked, given, ["a"])
    assert [cache_option(task) for task in tasks] == ["fp8", "fp8"]
    assert cache_option(reference_task(settings, asked, given)) is None
    emulated = Settings("m", "int8", kv_cache="int8", emulate_cache=True)
    assert cache_option(sampling_task(emulated, asked)) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_cache": "int4"}, "--kv-cache 'int4'"),
        ({"kv_cache": "fp8", "buckets": (8, 4)}, "--bucket 8, 4"),
        ({"kv_cache": "fp8", "buckets": (0, 4)}, "--bucket 0, 4"),
        ({"emulate_cache": True}, "--emulate-cache"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(OptionError, match=words):
        Settings("m", "int8", **options)
