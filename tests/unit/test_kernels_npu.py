"""The NPU kernels' arithmetic on this CPU, against the oracle; tests/npu_host runs them on the real operations."""

import math
import weakref

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_modules import Kernels
from naming import line_naming
from write_cases import COPIES, DTYPES, FLOAT32, LAYOUTS, Case, awkward_values, cases, check, new_counters

from ascend_quant import oracle
from ascend_quant.kernels import npu
from ascend_quant.kernels.npu.refit import codes as npu_codes
from ascend_quant.kernels.npu.refit import digests as npu_digests
from ascend_quant.kernels.npu.refit import pieces as npu_pieces
from ascend_quant.kernels.npu.refit import write as npu_write
from ascend_quant.kernels.npu.refit.formats import Panels, Transposed
from ascend_quant.kernels.writes import Int8Write, Job
from ascend_quant.refit import Refit, batch, serving_state
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight

HERE = Kernels(npu, torch.device("cpu"))
NPU_KINDS = ("int8", "int8 codes", *FLOAT32, *COPIES)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.filter_too_much])
@given(cases().filter(lambda case: case.kind in NPU_KINDS))
def test_any_case_equals_the_oracle(case):
    check(HERE, [case])


def take_together(monkeypatch, elements: int) -> None:
    """So many elements in one chunk, of any kind."""
    way = npu_codes.way_of(HERE.device)._replace(elements=elements)
    monkeypatch.setattr(npu_codes, "way_of", lambda device: way)
    monkeypatch.setattr(npu_write, "ELEMENTS", elements)
    monkeypatch.setattr(npu_digests, "ELEMENTS", elements)
    monkeypatch.setattr(npu_pieces, "ALONE", max(1, elements // 2))


@pytest.mark.parametrize("together", [1, 40, 1 << 23])
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_in_one_batch(monkeypatch, together, dtype):
    take_together(monkeypatch, together)
    batch = []
    for i, layout in enumerate(LAYOUTS):
        columns = slice(2, 9) if layout.startswith("columns") else slice(None)
        values = awkward_values(5 + i, 16, dtype, i)
        batch += [Case("int8", values, layout, columns, first_row=60 * i, weight=2 * i + 1) for _ in range(2)]
        batch.append(Case("fp32", values, layout, columns, first_row=i))
        batch += [Case(kind, values, layout, columns, first_row=7 * i, weight=2 * i + 1) for kind in FLOAT32]
    check(HERE, batch)


def test_rows_of_one_resident_in_any_order():
    values_NK = awkward_values(12, 16, torch.bfloat16, 3)
    codes_NK, scale_N = torch.zeros(12, 16, dtype=torch.int8), torch.zeros(12)
    counters = new_counters(HERE.device, 3, npu.Counters)
    jobs = []
    for slot, rows in enumerate((slice(0, 4), slice(8, 12), slice(4, 8))):
        where = {"scale": scale_N[rows], "first_row": rows.start, "weight": 5}
        write = Int8Write.of(values_NK[rows], codes_NK[rows], **where)
        jobs.append(Job.of(write, values_NK[rows], slot))
    npu.write(jobs, counters)
    expected, scales = oracle.quantize_weight(values_NK)
    assert torch.equal(codes_NK, expected) and torch.equal(scale_N, scales)
    digest = oracle.add_digests(oracle.digest(expected), oracle.digest(scales), weights=[5, 15])
    assert counters.read()[1] == digest


def test_what_is_not_finite_is_counted_by_source_across_blocks_of_counters():
    counters = new_counters(HERE.device, 5000, npu.Counters)
    jobs = []
    for slot, bad in ((3, 1), (4095, 0), (4096, 2), (4999, 1)):
        values = torch.ones(4, 6)
        values[:bad, :2] = math.nan
        jobs.append(Case("int8", values).prepare(HERE.device, slot))
    npu.write(jobs, counters)
    assert counters.read()[2] == {3: 1, 4096: 2, 4999: 1}  # rows


@pytest.mark.parametrize("kind", ["int8", "int8_float32"])
def test_what_is_not_finite_elsewhere_in_the_whole_rows_is_seen(kind):
    values = torch.ones(5, 6)
    values[2, 3] = math.inf
    counters = new_counters(HERE.device, 1, npu.Counters)
    npu.write([Case(kind, values, columns=slice(0, 2)).prepare(HERE.device, 0)], counters)
    assert counters.read()[2] == {0: 1}


def test_what_is_not_finite_is_counted_with_given_scales_too():
    values = torch.ones(5, 6)
    values[2, 3] = math.nan
    counters = new_counters(HERE.device, 2, npu.Counters)
    npu.write([Case("int8_static", values).prepare(HERE.device, 1)], counters)
    assert counters.read()[2] == {1: 1}


def test_what_is_kept_until_the_close_is_no_source():
    """A trainer may send one tensor after the other in memory that it frees."""
    counters = new_counters(HERE.device, 1, npu.Counters)
    for kind in ("int8", "int8_float32", "bf16"):
        job = Case(kind, torch.ones(4, 6)).prepare(HERE.device, 0)
        source = weakref.ref(job.tensors[0])
        npu.write([job], counters)
        del job
        assert source() is None


def test_fp8_is_refused():
    with pytest.raises(ValueError, match=line_naming("FP8", "scheme int8")):
        npu.write([Case("fp8", torch.ones(2, 2)).prepare(HERE.device, 0)], new_counters(HERE.device, 1, npu.Counters))


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.int64])
def test_digests_equal_the_oracle(monkeypatch, dtype):
    take_together(monkeypatch, 50)
    shapes = ((7, 9), (5,), (2, 3, 4), (0, 3), (6, 4), (3, 4), (6, 4))
    tensors = [torch.randint(-100, 100, shape).to(dtype) for shape in shapes]
    assert npu.digests(tensors).tolist() == [oracle.digest(tensor) for tensor in tensors]
    shifted = npu.digests(tensors[:2], [1000, 2**33], [0, 3])
    wanted = [oracle.digest(tensors[0], 1000), oracle.digest(tensors[1], 2**33, 3)]
    assert shifted.tolist() == wanted
    assert npu.read_digests([npu.digests(tensors[4:]), npu.digests([]), shifted])[3:] == wanted


@pytest.mark.parametrize("layout_of", ["transposed", "panels"])
def test_a_refit_of_weights_that_lie_otherwise(monkeypatch, layout_of):
    monkeypatch.setattr(batch, "kernels_for", lambda device: npu)
    monkeypatch.setattr(serving_state, "kernels_for", lambda device: npu)
    experts, channels, length = 3, 96, 20
    shape = (experts, length, channels)
    if layout_of == "transposed":
        layout = Transposed(torch.zeros(shape, dtype=torch.int8))
    else:
        memory = torch.zeros(experts * channels * 32, dtype=torch.int8)
        layout = Panels(torch.zeros(shape, dtype=torch.int8), memory)
    stand_in = torch.empty(experts, channels, length, dtype=torch.int8, device="meta")
    scale, copy = torch.zeros(experts, channels), torch.zeros(experts * channels, dtype=torch.bfloat16)
    weight = QuantizedWeight("w13", stand_in, scale, length, layout=layout, copies=[copy])
    norm = ResidentWeight("norm", torch.zeros(7, dtype=torch.bfloat16))
    session = Refit([weight, norm])
    for seed in range(3):
        w_ENK = torch.randn(experts, channels, length, generator=torch.Generator().manual_seed(seed))
        plain = torch.randn(7, generator=torch.Generator().manual_seed(seed))
        with session.session():
            for expert in (2, 0, 1):
                for half in (slice(50, 96), slice(0, 50)):
                    shard = w_ENK[expert, half]
                    slot = session.batch.new_sources([("w", shard.numel())])
                    session.write(slot, weight, stand_in[expert, half], shard)
            session.write(session.batch.new_sources([("norm", 7)]), norm, norm.data, plain)
        codes, scales = oracle.quantize_weight(w_ENK)
        assert torch.equal(layout[:], codes.view(-1, length)) and torch.equal(scale, scales)
        assert torch.equal(copy, scales.view(-1).to(torch.bfloat16))
        assert torch.equal(norm.data, plain.to(torch.bfloat16))
        receipt = session.last_receipt
        assert receipt.digest == session.digest()
        pairs = [(codes, weight.weight), (scales.view(-1), 3 * weight.weight), (norm.data, norm.weight)]
        expected = oracle.add_digests(*(oracle.digest(t) for t, _ in pairs), weights=[w for _, w in pairs])
        assert receipt.digest == f"{expected:016x}"
    compared = [r for r in range(experts * channels) if r % 64 == 0]
    before = oracle.quantize_weight(torch.randn(experts, channels, length, generator=torch.Generator().manual_seed(1)))[
        0
    ].view(-1, length)
    differing = int((codes.view(-1, length)[compared] != before[compared]).sum())
    assert receipt.changed == differing / (len(compared) * length)


def test_a_first_load_takes_little_work_space(monkeypatch):
    """vllm-ascend's pool keeps for good what it took."""
    take_together(monkeypatch, 1 << 20)
    monkeypatch.setattr(npu_write, "ELEMENTS", 64)
    monkeypatch.setattr(batch, "kernels_for", lambda device: npu)
    rows, right = [], npu_write._write
    monkeypatch.setattr(
        npu_write, "_write", lambda *args: rows.append(sum(one.count for one in args[0])) or right(*args)
    )
    weight = QuantizedWeight("w", torch.zeros(32, 16, dtype=torch.int8), torch.zeros(32), 16)
    session, w_NK = Refit([weight]), torch.randn(32, 16).bfloat16()
    for _ in range(2):
        with session.session():
            session.write(session.batch.new_sources([("w", w_NK.numel())]), weight, weight.data, w_NK)
    assert rows == [4] * 8 + [32]


def layout_of(kind: str, stack: tuple[int, ...], channels: int, length: int):
    """Where a weight (.., N, K) is kept."""
    tensor = torch.zeros(*stack, length, channels, dtype=torch.int8)
    if kind == "transposed":
        return Transposed(tensor)
    experts, padded = math.prod(stack), -(-channels // 32) * 32 * -(-length // 16) * 16
    return Panels(tensor, torch.zeros(experts * padded, dtype=torch.int8))


def weights_of(kind: str, experts: int, channels: int) -> dict[str, QuantizedWeight]:
    """A linear layer of K = 20, a stack of experts and another linear layer of the same."""
    found = {}
    for name, stack in (("qkv", ()), ("w13", (experts,)), ("up", ())):
        layout = layout_of(kind, stack, channels, 20)
        stand_in = torch.empty(*stack, channels, 20, dtype=torch.int8, device="meta")
        found[name] = QuantizedWeight(name, stand_in, torch.zeros(*stack, channels), 20, layout=layout)
    return found


@pytest.mark.parametrize("kind", ["transposed", "panels"])
@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.sampled_from([32, 64, 96, 130]), st.sampled_from([60, 700, 5000, 1 << 20]), st.data())
def test_any_bucketing_of_dense_weights_and_experts(kind, experts, channels, together, data):
    """Tensors in any order, in buckets of one buffer each, cut anywhere, refitted twice."""
    with pytest.MonkeyPatch.context() as patch:
        take_together(patch, together)
        patch.setattr(batch, "kernels_for", lambda device: npu)
        patch.setattr(serving_state, "kernels_for", lambda device: npu)
        weights = weights_of(kind, experts, channels)
        norm = ResidentWeight("norm", torch.zeros(7, dtype=torch.bfloat16))
        session = Refit([*weights.values(), norm])
        for seed in range(2):
            values = awkward_values((experts + 2) * channels, 20, torch.bfloat16, seed)
            parts = dict(zip(weights, values.split([channels, experts * channels, channels]), strict=True))
            cut = data.draw(st.integers(1, channels - 1))
            shards = [
                (weight.data.view(-1, channels, 20)[e, here], parts[name].view(-1, channels, 20)[e, here], weight)
                for name, weight in weights.items()
                for e in range(weight.data.numel() // (channels * 20))
                for here in (slice(0, cut), slice(cut, channels))
            ]
            shards.append((norm.data, values[0, :7], norm))
            if data.draw(st.booleans()):
                shards = data.draw(st.permutations(shards))
            with session.session():
                size = data.draw(st.integers(1, len(shards)))
                for start in range(0, len(shards), size):
                    bucket = torch.cat([shard.reshape(-1) for _, shard, _ in shards[start : start + size]])
                    for view, shard, weight in shards[start : start + size]:
                        sent, bucket = bucket[: shard.numel()].view(shard.shape), bucket[shard.numel() :]
                        session.write(session.batch.new_sources([("w", shard.numel())]), weight, view, sent)
                    session.batch.flush()
            pairs = [(norm.data, norm.weight)]
            for name, weight in weights.items():
                codes, scales = oracle.quantize_weight(parts[name])
                assert torch.equal(weight.layout[:], codes) and torch.equal(weight.scale.view(-1), scales)
                pairs += [(codes.view(weight.data.shape), weight.weight), (scales, 3 * weight.weight)]
            wanted = oracle.add_digests(*(oracle.digest(one) for one, _ in pairs), weights=[w for _, w in pairs])
            assert session.last_receipt.digest == f"{wanted:016x}" == session.digest()
