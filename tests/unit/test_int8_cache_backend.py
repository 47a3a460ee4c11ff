"""Our attention backend through the classes that vLLM calls, kernels in Triton's interpreter, against the oracle."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kernel_modules import interpreter

pytest.importorskip("vllm")
pytest.importorskip("triton")

from ascend_quant.integrations.vllm import contract
from ascend_quant.integrations.vllm.kv_cache.attention import int8_cache
from ascend_quant.integrations.vllm.kv_cache.attention.metadata import Int8CacheMetadataBuilder
from ascend_quant.kernels import cache_pages
from ascend_quant.oracle import cache as oracle

HEADS, GROUP, HEAD, PAGE, BLOCKS = 2, 2, 64, 128, 12
SCALE = 0.125
LACKING = contract.problem_of("kv_cache int8 on NVIDIA")  # from vLLM 0.29 on, which asks backends other things


@pytest.fixture(scope="module", autouse=True)
def interpreted():
    with interpreter(), np.errstate(all="ignore"):
        yield


def builder(most=4):
    model = SimpleNamespace(get_num_attention_heads=lambda parallel: HEADS * GROUP)
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[1, 2]),
        scheduler_config=SimpleNamespace(max_num_seqs=most),
        model_config=model,
        parallel_config=None,
    )
    spec = SimpleNamespace(block_size=PAGE, num_kv_heads=HEADS, head_size=HEAD)
    return Int8CacheMetadataBuilder(spec, ["layer"], config, torch.device("cpu"))


def impl(**changed):
    arguments = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "int8_per_token_head"}
    made = int8_cache.Int8CacheImpl(HEADS * GROUP, HEAD, SCALE, num_kv_heads=HEADS, **arguments | changed)
    made.fresh_seen = []
    made.fresh = lambda *given: fresh(made, *given)
    return made


def fresh(layer, q, k, v, starts, longest, out):
    """FlashAttention's stand-in."""
    layer.fresh_seen.append(longest)
    for begin, end in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        for row in range(begin, end):
            seen = slice(begin, row + 1)
            out[row] = oracle.decode_attention(q[row : row + 1], [k[seen]], [v[seen]], SCALE)[0].half()


def common(lengths, counts, known=True):
    """What vLLM's runner tells a builder."""
    starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    tables = torch.arange(len(lengths) * 3, dtype=torch.int32).view(-1, 3).flip(0).contiguous()
    places = [torch.arange(length - count, length) for length, count in zip(lengths, counts, strict=True)]
    slots = [tables[row][place // PAGE].long() * PAGE + place % PAGE for row, place in enumerate(places)]
    return SimpleNamespace(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        seq_lens_cpu_upper_bound=torch.tensor(lengths, dtype=torch.int32) if known else None,
        num_reqs=len(lengths),
        num_actual_tokens=sum(counts),
        max_query_len=max(counts),
        block_table_tensor=tables,
        slot_mapping=torch.cat(slots),
    )


class Sequences:
    """Requests whose keys and values are known, and what a layer should give for their newest tokens."""

    def __init__(self, longest):
        generator = torch.Generator().manual_seed(1)
        shape = (3, len(longest), max(longest), HEADS * GROUP, HEAD)
        self.q, k, v = torch.randn(shape, generator=generator).half()
        self.k, self.v = k[:, :, :HEADS], v[:, :, :HEADS]
        self.cache = cache_pages.empty(BLOCKS, cache_pages.Layout(PAGE, HEADS, HEAD), "cpu")

    def step(self, layer, made, lengths, counts, known=True, padded=0):
        """(found, expected) of the step's tokens, request by request."""
        given = common(lengths, counts, known)
        metadata = made.build(0, given)
        news = [slice(length - count, length) for length, count in zip(lengths, counts, strict=True)]
        q, k, v = (torch.cat([x[row, new] for row, new in enumerate(news)]) for x in (self.q, self.k, self.v))
        q, k, v = (torch.cat([x, x.new_full((padded, *x.shape[1:]), torch.nan)]) for x in (q, k, v))
        layer.do_kv_cache_update(None, k, v, self.cache, given.slot_mapping)
        out = torch.full_like(q, torch.nan)
        assert layer.forward(None, q, k, v, self.cache, metadata, out) is out
        assert out[sum(counts) :].isnan().all()
        expected = [self.expected(*one) for one in zip(range(len(lengths)), lengths, counts, strict=True)]
        return out[: sum(counts)].double().split(counts), expected

    def expected(self, row, length, count):
        k, v = self.k[row, :length], self.v[row, :length]
        if count == 1 or count < length:
            k, v = (oracle.dequantize_cache(*oracle.quantize_cache(x)) for x in (k, v))
        ends = range(length - count + 1, length + 1)
        return oracle.decode_attention(
            self.q[row, length - count : length], [k[:end] for end in ends], [v[:end] for end in ends], SCALE
        )


def check(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 4e-3


def test_prompts_then_chunks_then_decodes_and_all_at_once():
    sequences, layer, made = Sequences([40, 140, 70]), impl(), builder()
    check(*sequences.step(layer, made, [30, 100, 20], [30, 100, 20]))
    assert layer.fresh_seen == [100]
    check(*sequences.step(layer, made, [31, 135, 70], [1, 35, 50]))
    assert layer.fresh_seen == [100]  # nobody was fresh
    check(*sequences.step(layer, made, [32, 136, 70], [1, 1, 70], padded=3))  # the third begins anew
    assert layer.fresh_seen == [100, 70]
    check(*sequences.step(layer, made, [33, 137, 70], [1, 1, 1]))


def test_a_prompt_beside_a_later_chunk():
    for known in (True, False):  # without vLLM's lengths on the host, both ways are gone
        sequences, layer, made = Sequences([10, 60, 70]), impl(), builder()
        check(*sequences.step(layer, made, [9, 50, 5], [9, 50, 5]))
        check(*sequences.step(layer, made, [10, 60, 70], [1, 10, 70], known))
        assert layer.fresh_seen == [50, 70]


def test_fresh_prompts_do_not_see_the_caches_error():
    sequences, layer, made = Sequences([64]), impl(), builder()
    found, exact = sequences.step(layer, made, [64], [64])
    quantized = [oracle.dequantize_cache(*oracle.quantize_cache(x[0])) for x in (sequences.k, sequences.v)]
    ends = range(1, 65)
    with_error = oracle.decode_attention(sequences.q[0], *([x[:end] for end in ends] for x in quantized), SCALE)
    assert (found[0] - exact[0]).abs().max() < 1e-3 < (with_error - exact[0]).abs().max()


def test_padded_requests_of_a_graph_give_zeros_and_the_plan_stays_where_it_is():
    sequences, layer, made = Sequences([10, 10, 10]), impl(), builder()
    sequences.step(layer, made, [9, 9, 9], [9, 9, 9])
    captured = made.build_for_cudagraph_capture(common([10, 10, 10], [1, 1, 1]))
    assert captured.lengths.tolist() == [1, 1, 1] and captured.prefills is None
    given = common([10, 10, 10], [1, 1, 1])
    given.seq_lens[2] = 0  # as vLLM pads
    later = made.build(0, given)
    for one, two in zip(captured.plan[:2], later.plan[:2], strict=True):
        assert one.data_ptr() == two.data_ptr() and one.shape == two.shape
    q = sequences.q[:, 9]
    layer.do_kv_cache_update(None, sequences.k[:, 9], sequences.v[:, 9], sequences.cache, given.slot_mapping)
    out = layer.forward(None, q, q, q, sequences.cache, later, torch.full_like(q, torch.nan))
    check(out[:2, None].double(), [sequences.expected(row, 10, 1) for row in range(2)])
    assert not out[2].any()


def test_another_cache_at_another_address_is_read_where_it_is():
    sequences, layer, made = Sequences([10]), impl(), builder()
    sequences.step(layer, made, [9], [9])  # vLLM's small cache, while it measures
    sequences.cache = torch.zeros_like(sequences.cache)
    check(*sequences.step(layer, made, [9], [9]))
    check(*sequences.step(layer, made, [10], [1]))


def test_measuring_memory_needs_no_cache():
    out = torch.ones(3, HEADS * GROUP, HEAD)
    assert not impl().forward(None, out, out, out, torch.empty(0), None, out).any()


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"sliding_window": 128}, "sliding_window"),
        ({"alibi_slopes": [0.5]}, "alibi_slopes"),
        ({"logits_soft_cap": 30.0}, "logits_soft_cap"),
        ({"sinks": torch.zeros(4)}, "sinks"),
        ({"kv_sharing_target_layer_name": "layers.0"}, "kv_sharing_target_layer_name"),
        ({"attn_type": "encoder_only"}, "attn_type"),
    ],
)
def test_layers_that_are_not_served(changed, name):
    with pytest.raises(NotImplementedError, match=name):
        impl(**changed)


@pytest.mark.skipif(LACKING is not None, reason=f"refused by name here: {LACKING}")
def test_what_vllm_asks_of_a_backend():
    backend = int8_cache.Int8CacheBackend
    shape = backend.get_kv_cache_shape(5, 64, 4, 128, "int8_per_token_head")
    assert shape == (5, 2, 64, 4, 132) and backend.get_kv_cache_block_dim(64, 4, 128) == 0
    assert backend.supports_kv_cache_dtype("int8_per_token_head") and not backend.supports_kv_cache_dtype("fp8")
    assert not backend.supports_head_size(96) and backend.supports_head_size(128)
    assert backend.get_preferred_block_size(16) == backend.get_preferred_block_size(128) == 128
    assert not backend.supports_dtype(torch.float32) and backend.get_required_kv_cache_layout() == "NHD"
    capabilities = [SimpleNamespace(major=major) for major in (7, 8, 9, 10)]
    assert [backend.supports_compute_capability(one) for one in capabilities] == [False, True, True, True]
