"""The balance of keys without an engine: its factors by hand, and what a refit makes of resident weights.

What it must be is computed from BF16 weights: scaled before they are quantized, q and k of them rotated in float64.
"""

import math

import pytest
import torch
from kv_cases import rotated

from ascend_quant import oracle
from ascend_quant.kv_cache.smooth_attention import Attention, KeyBalance
from ascend_quant.oracle.key_balance import key_balance, key_sizes
from ascend_quant.refit import Refit, RefitError
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight

HEADS, GROUPS, HEAD, WIDTH = 6, 2, 16, 96  # so wide that random rows are alike, and none lies out
OUTLIERS = {(0, 3): 90.0, (0, 13): -300.0, (1, 8): 140.0}  # head and channel of the keys


def by_hand(w_NK, norm_K, bias_N, k_norm_D) -> list[list[float]]:
    """The formula in Python's floats, a head and a pair at a time."""
    w, norm, groups, half = w_NK.tolist(), norm_K.tolist(), w_NK.shape[0] // HEAD, HEAD // 2
    peaks = []
    for group in range(groups):
        rows = range(group * HEAD, (group + 1) * HEAD)
        spread = [math.sqrt(sum((x * g) ** 2 for x, g in zip(w[row], norm, strict=True))) for row in rows]
        offset = [0.0 if bias_N is None else bias_N[row].item() for row in rows]
        if k_norm_D is not None:
            length = math.sqrt(sum(a * a + b * b for a, b in zip(spread, offset, strict=True)) / HEAD)
            gain = [abs(one) / length for one in k_norm_D.tolist()]
            spread, offset = ([a * b for a, b in zip(one, gain, strict=True)] for one in (spread, offset))
        peaks.append(
            [
                math.hypot(offset[i], offset[i + half]) + 3 * math.hypot(spread[i], spread[i + half]) / math.sqrt(2)
                for i in range(half)
            ]
        )
    if k_norm_D is not None:
        peaks = [[math.sqrt(sum(one[i] ** 2 for one in peaks) / groups) for i in range(half)]] * groups
    middles = [sorted(one)[(half - 1) // 2] for one in peaks]
    found = [
        [max(1.0, 2.0 ** math.floor(math.log2(peak / middle))) for peak in one]
        for one, middle in zip(peaks, middles, strict=True)
    ]
    return [one * 2 for one in found]


def weights(normed: bool = False, biased: bool = True, seed: int = 0) -> dict[str, torch.Tensor]:
    """A layer's tensors in BF16; keys with outliers, in the norm's weights where there is one."""
    generator = torch.Generator().manual_seed(seed)
    rows = {"q": HEADS * HEAD, "k": GROUPS * HEAD, "v": GROUPS * HEAD}
    found = {f"{kind}_proj.weight": torch.randn(count, WIDTH, generator=generator) for kind, count in rows.items()}
    found["input_norm"] = torch.rand(WIDTH, generator=generator) + 0.5
    if biased:
        found |= {f"{kind}_proj.bias": torch.randn(count, generator=generator) for kind, count in rows.items()}
        for (group, channel), value in OUTLIERS.items():
            found["k_proj.bias"][group * HEAD + channel] = value
    if normed:
        found |= {f"{kind}_norm": torch.rand(HEAD, generator=generator) + 0.5 for kind in "qk"}
        found["k_norm"][3] = 40.0
    return {name: tensor.bfloat16() for name, tensor in found.items()}


KINDS = {
    "biases": weights(),
    "norms": weights(normed=True, biased=False),
    "both": weights(normed=True),
    "neither": weights(biased=False),
}


def factors_of(state: dict[str, torch.Tensor], k_proj: torch.Tensor | None = None) -> torch.Tensor:
    k_norm = state.get("k_norm")
    w_NK = state["k_proj.weight"] if k_proj is None else k_proj
    sizes = key_sizes(w_NK, state["input_norm"], state.get("k_proj.bias"), k_norm, HEAD)
    return key_balance(*sizes, shared=k_norm is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_factors_by_hand(kind):
    state = KINDS[kind]
    given = [state.get(name) for name in ("k_proj.weight", "input_norm", "k_proj.bias", "k_norm")]
    found = factors_of(state)
    assert found.dtype == torch.float32 and found.tolist() == by_hand(*given)
    assert (found.max() > 1) == (kind != "neither")


def test_only_what_lies_out_is_divided():
    found, half = factors_of(KINDS["biases"]), HEAD // 2
    out = {(group, channel % half) for group, channel in OUTLIERS}
    assert {(group, pair) for group, pair in (found[:, :half] > 1).nonzero().tolist()} == out
    assert torch.equal(found[:, :half], found[:, half:])
    smaller = KINDS["biases"] | {"k_proj.bias": KINDS["biases"]["k_proj.bias"] / 64}
    assert factors_of(smaller).max() == 1  # a channel whose bias is no larger than the rest


def test_weights_of_zero_and_factors_beyond_all_bounds_stay_numbers():
    zeros = torch.zeros(2, 4, dtype=torch.float64)
    assert key_balance(zeros, zeros).tolist() == [[1.0] * 4] * 2
    huge = zeros.clone()
    huge[0, 1] = 1e30
    assert key_balance(huge, zeros)[0].tolist() == [1.0, 2.0**15, 1.0, 2.0**15]


class Layer:
    """One attention's resident weights and its refit, as a rank holds them; `served` are its groups."""

    def __init__(
        self, state: dict[str, torch.Tensor], quantized: bool, served: slice = slice(0, GROUPS), on: bool = True
    ):
        self.state, self.served = state, served
        groups = served.stop - served.start
        heads = groups * HEADS // GROUPS
        rows = (heads + 2 * groups) * HEAD
        if quantized:
            codes = torch.zeros(rows, WIDTH, dtype=torch.int8)
            self.qkv = QuantizedWeight("qkv_proj.weight", codes, torch.zeros(rows, 1), WIDTH)
        else:
            self.qkv = ResidentWeight("qkv_proj.weight", torch.zeros(rows, WIDTH, dtype=torch.bfloat16))
        sizes = {"bias": rows, "input_norm": WIDTH, "q_norm": HEAD, "k_norm": HEAD}
        there = {"bias": "q_proj.bias" in state, **{name: name in state for name in ("input_norm", "q_norm", "k_norm")}}
        self.vectors = {
            name: ResidentWeight(name, torch.zeros(sizes[name], dtype=torch.bfloat16)) for name in sizes if there[name]
        }
        bias, q_norm, k_norm = (self.vectors.get(name) for name in ("bias", "q_norm", "k_norm"))
        shape = heads, groups, HEAD
        attention = Attention("attn", self.vectors["input_norm"], self.qkv, bias, q_norm, k_norm, *shape)
        self.balance = KeyBalance([attention]) if on else None
        self.refit = Refit([self.qkv, *self.vectors.values()], checks=[self.balance] if on else [])
        self.starts = {"q": 0, "k": heads * HEAD, "v": (heads + groups) * HEAD}

    def sent(self) -> list[tuple[torch.Tensor, ResidentWeight, torch.Tensor]]:
        """Shards, and where they go."""
        found = []
        for kind, start in self.starts.items():
            per_group = HEAD * (HEADS // GROUPS if kind == "q" else 1)
            rows = slice(self.served.start * per_group, self.served.stop * per_group)
            for leaf, resident in (("weight", self.qkv), ("bias", self.vectors.get("bias"))):
                if resident is not None:
                    shard = self.state[f"{kind}_proj.{leaf}"][rows]
                    found.append((resident.data[start : start + len(shard)], resident, shard))
        alone = [name for name in self.vectors if name != "bias"]
        return found + [(self.vectors[name].data, self.vectors[name], self.state[name]) for name in alone]

    def write(self, order=None) -> "Layer":
        with self.refit.session():
            moves = self.sent()
            for number in order or range(len(moves)):
                view, resident, shard = moves[number]
                slot = self.refit.batch.new_sources([(resident.name, shard.numel())])
                self.refit.write(slot, resident, view, shard.clone())
                self.refit.batch.flush()
        return self

    def tensors(self) -> dict[str, torch.Tensor]:
        found = {name: one.data for name, one in self.vectors.items()} | {"codes": self.qkv.data}
        return found | ({"scale": self.qkv.scale.view(-1)} if isinstance(self.qkv, QuantizedWeight) else {})

    def rows(self) -> dict[str, torch.Tensor]:
        """Weights and biases of q and k in float64, as they are served."""
        is_quantized = isinstance(self.qkv, QuantizedWeight)
        w_NK = oracle.dequantize(self.qkv.data, self.qkv.scale.view(-1)) if is_quantized else self.qkv.data
        bias_N = self.vectors["bias"].data if "bias" in self.vectors else torch.zeros(len(w_NK))
        ends = {"q": self.starts["k"], "k": self.starts["v"]}
        return {
            kind: (w_NK[self.starts[kind] : end].double(), bias_N[self.starts[kind] : end].double())
            for kind, end in ends.items()
        }

    def scores(self) -> torch.Tensor:
        """q k of all heads over 5 tokens, (H, 5, 5) float64: projected, normed, rotated."""
        generator = torch.Generator().manual_seed(9)
        x_SK = torch.randn(5, WIDTH, generator=generator, dtype=torch.float64)
        angles = torch.arange(5)[:, None] * 0.7 ** torch.arange(HEAD // 2)
        cos, sin = (torch.cat([one, one], 1)[None].double() for one in (angles.cos(), angles.sin()))
        found = []
        for kind, (w_NK, bias_N) in self.rows().items():
            y_HSD = (x_SK @ w_NK.T + bias_N).unflatten(-1, (-1, HEAD)).transpose(0, 1)
            if f"{kind}_norm" in self.vectors:
                length = y_HSD.square().mean(-1, keepdim=True).sqrt()
                y_HSD = y_HSD / length * self.vectors[f"{kind}_norm"].data.double()
            found.append(rotated(y_HSD[None], cos, sin)[0])
        q_HSD, k_GSD = found
        return q_HSD @ k_GSD.repeat_interleave(len(q_HSD) // len(k_GSD), 0).transpose(1, 2)


EACH = pytest.mark.parametrize(("kind", "quantized"), [(kind, one) for kind in KINDS for one in (True, False)])


@EACH
def test_a_refit_leaves_what_scaled_weights_would_have_been_quantized_to(kind, quantized):
    state, layer = KINDS[kind], Layer(KINDS[kind], quantized).write()
    w_NK = torch.cat([state[f"{one}_proj.weight"] for one in "qkv"]).float()
    codes, scale_N = oracle.quantize_weight(w_NK)
    keys = slice(HEADS * HEAD, (HEADS + GROUPS) * HEAD)
    served = oracle.dequantize(codes, scale_N)[keys] if quantized else w_NK[keys]
    factor_GD = factors_of(state, served)
    assert torch.equal(layer.balance.factors["attn"], factor_GD)
    by_row = torch.cat([factor_GD.repeat_interleave(HEADS // GROUPS, 0).flatten(), 1 / factor_GD.flatten()])
    by_row = torch.cat([by_row, torch.ones(GROUPS * HEAD)])
    wanted = {name: state[name] for name in ("input_norm", "q_norm", "k_norm") if name in state}
    if "bias" in layer.vectors:
        wanted["bias"] = torch.cat([state[f"{one}_proj.bias"] for one in "qkv"])
    if "k_norm" in state:
        wanted["q_norm"], wanted["k_norm"] = state["q_norm"] * factor_GD[0], state["k_norm"] / factor_GD[0]
    else:
        w_NK = w_NK * by_row[:, None]
        if "bias" in wanted:
            wanted["bias"] = wanted["bias"] * by_row
    if quantized:
        wanted["codes"], wanted["scale"] = oracle.quantize_weight(w_NK)
        assert torch.equal(wanted["codes"], codes)
    else:
        wanted["codes"] = w_NK.bfloat16()
    held = layer.tensors()
    assert held.keys() == wanted.keys()
    for name, tensor in held.items():
        assert torch.equal(tensor.float(), wanted[name].float()), name


@EACH
def test_attention_computes_the_same_numbers(kind, quantized):
    layers = [Layer(KINDS[kind], quantized, on=on).write() for on in (True, False)]
    on, off = (layer.scores() for layer in layers)
    assert torch.equal(on, off)
    [factor_GD] = layers[0].balance.factors.values()
    assert factor_GD.shape == (GROUPS, HEAD) and bool((factor_GD > 1).any()) == (kind != "neither")


@EACH
def test_order_and_former_steps_leave_no_trace(kind, quantized):
    """The digest of the receipt is that of the bytes, which stay where they were."""
    reference = Layer(KINDS[kind], quantized).write()
    wanted = {name: tensor.clone() for name, tensor in reference.tensors().items()}
    places = {name: tensor.data_ptr() for name, tensor in reference.tensors().items()}
    reference.state = weights(normed=True, seed=1)  # of which it takes what it has
    reference.write()
    assert not torch.equal(reference.tensors()["codes"], wanted["codes"])
    count = len(reference.sent())
    for order in (range(count), range(count - 1, -1, -1), [*range(1, count), 0]):
        reference.state = KINDS[kind]
        reference.write(order)
        assert places == {name: tensor.data_ptr() for name, tensor in reference.tensors().items()}
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in reference.tensors().items())
        assert reference.refit.last_receipt.digest == reference.refit.digest()
        reference.refit.verify()
    if quantized:
        reference.qkv.scale.view(-1)[HEADS * HEAD + 3] *= 2  # a byte that changes afterwards is seen
        with pytest.raises(RefitError):
            reference.refit.verify()


def test_since_when_cached_keys_can_be_read():
    """A refit that changes one factor makes others' keys unreadable; one that fails, or changes none, does not."""
    layer = Layer(KINDS["biases"], quantized=True).write()
    layer.state = KINDS["biases"] | {"q_proj.weight": KINDS["biases"]["q_proj.weight"] * 3}
    assert (layer.write().balance.cache_since, layer.refit.cache_since, layer.refit.last_receipt.number) == (1, 1, 2)
    bias = KINDS["biases"]["k_proj.bias"].clone()
    bias[3] *= 4
    layer.state = KINDS["biases"] | {"k_proj.bias": bias}
    assert (layer.write().balance.cache_since, layer.refit.last_receipt.number) == (3, 3)
    layer.state = KINDS["biases"] | {"v_proj.weight": torch.full_like(KINDS["biases"]["v_proj.weight"], math.nan)}
    with pytest.raises(RefitError, match="NaN"):
        layer.write()
    layer.state = KINDS["biases"] | {"k_proj.bias": bias}
    assert (layer.write().balance.cache_since, layer.refit.last_receipt.number) == (3, 4)
    assert Layer(KINDS["biases"], quantized=True, on=False).write().refit.cache_since == 0


@pytest.mark.parametrize("kind", ["biases", "neither"])
def test_ranks_hold_parts_of_the_whole_and_copies_are_alike(kind):
    whole = Layer(KINDS[kind], quantized=True).write()
    for group in range(GROUPS):
        ranks = [Layer(KINDS[kind], quantized=True, served=slice(group, group + 1)).write() for _ in range(2)]
        assert ranks[0].refit.last_receipt.digest == ranks[1].refit.last_receipt.digest
        for start, rows in (("q", HEADS // GROUPS * HEAD), ("k", HEAD), ("v", HEAD)):
            here, there = ranks[0].starts[start], whole.starts[start] + group * rows
            for name in ("codes", "scale", *(["bias"] if kind == "biases" else [])):
                mine, all_of_it = ranks[0].tensors()[name], whole.tensors()[name]
                assert torch.equal(mine[here : here + rows], all_of_it[there : there + rows]), (group, start, name)
