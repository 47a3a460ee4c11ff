"""`write` of every kernel module against the oracle, bit for bit."""

import math
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from write_cases import (
    DTYPES,
    FLOAT32,
    KINDS,
    PREQUANTIZED,
    QUANTIZED,
    Case,
    awkward_values,
    cases,
    check,
    new_counters,
    written,
)

from ascend_quant import oracle
from ascend_quant.kernels.counters import Counters
from ascend_quant.kernels.writes import CopyWrite, Fp8Write, Int8Write, Job, PrequantizedWrite, WriteBatch
from ascend_quant.schemes import SCHEMES
from ascend_quant.transfer import prequantized

LENGTHS = (1, 255, 256, 257, 1024, 1025, 2560, 2561, 8192, 8193, 32768, 32769, 65535, 65536)


@settings(deadline=None, max_examples=40)
@given(st.lists(cases(), min_size=1, max_size=3))
def test_a_batch_of_moves_equals_the_oracle(kernels, batch):
    check(kernels, batch)


@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_any_length_equal_the_oracle(kernels, length):
    kind = ("int8", "fp8_tensor", "bf16", "fp8")[LENGTHS.index(length) % 4]
    values = awkward_values(3, length, DTYPES[length % 3], length)
    layout = "shifted" if length % 2 else "aligned"
    check(kernels, [Case(kind, values, layout, first_row=63, weight=2**32 - 1)])
    exact = FLOAT32[LENGTHS.index(length) // 2 % 2]
    check(kernels, [Case(exact, awkward_values(3, length, torch.float32, length + 1), layout, first_row=63, weight=3)])


def test_many_moves_of_few_rows_are_told_apart(kernels):
    def case(i):
        values = awkward_values(1 + i * i % 7, (16, 24)[i % 2], torch.bfloat16, i)
        kind, layout = ("int8", "fp8_tensor")[i % 3 == 0], ("plain", "sparse")[i % 5 == 1]
        return Case(kind, values, layout, first_row=7 * i, weight=2 * i + 1)

    check(kernels, [case(i) for i in range(50)])


def test_rows_beyond_what_one_program_takes(kernels):
    check(kernels, [Case("int8", awkward_values(600, 3, torch.float32, 1), "transposed", first_row=60)])
    check(kernels, [Case("bf16", awkward_values(9000, 1, torch.float32, 2), first_row=5)])


def test_every_bf16_magnitude_gets_the_oracles_scale(kernels):
    values = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16).view(-1, 1)
    check(kernels, [Case("int8", values), Case("fp8", values)])
    some = values[::2003]
    check(kernels, [Case("fp8_tensor", one.view(1, 1)) for one in some])
    check(kernels, [Case("fp8_blocks", some.view(-1, 1, 1).expand(-1, 128, 2).reshape(-1, 2))])


def test_one_scale_of_a_slice_comes_from_the_whole_rows(kernels):
    whole = torch.randn(300, 6, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    whole[299, 5] = 1000  # outside the slice
    case = Case("fp8_tensor", whole, columns=slice(1, 3))
    check(kernels, [case])
    assert (case.scale == oracle.quantize_fp8_tensor(whole)[1]).all() and case.scale[0] > 2


@pytest.mark.parametrize("columns", [slice(None), slice(1, 4)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_a_tensor_share_its_one_scale(kernels, columns, dtype):
    tensor = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    tensor[39, 5] = 1000  # in neither part
    codes, scale = oracle.quantize_fp8_tensor(tensor)
    for bad in (0, 1):
        tensor[38, 5] = math.nan if bad else 1.0
        source = tensor.to(kernels.device)
        target = torch.zeros_like(codes[3:20, columns].contiguous().view(torch.int8)).to(kernels.device)
        more = {"whole": (3 * 6, 6)} if columns.start else {}
        scales = torch.full((17,), 7.0, device=kernels.device)
        where = {"target": target.view(torch.float8_e4m3fn), "scale": scales, "first_row": 64}
        offset = 3 * 6 + (columns.start or 0)
        write = Fp8Write(**where, offset=offset, row_stride=6, tensor_rows=(3, 40), **more)
        counters = new_counters(kernels.device, 1)
        kernels.module.write([Job.of(write, source)], counters)
        assert counters.read()[2] == ({0: 1} if bad else {})
        if not bad:
            assert torch.equal(target.cpu(), codes[3:20, columns].view(torch.int8))
            assert scale > 2 and (scales == scale).all()


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_receipt_the_same_bytes_are_written_and_nothing_is_counted(kernels, kind):
    counters = written(kernels, [Case(kind, awkward_values(150, 20, torch.float16, 3))], receipt=False)
    assert counters.read() == (0, 0, {}) and counters.clamped == 0


@pytest.mark.parametrize(
    ("kind", "layout", "columns", "rows"),
    [
        ("int8", "columns", slice(3, 17), 10),
        ("int8_float32", "columns", slice(3, 17), 10),
        ("int8_static", "columns", slice(3, 17), 10),
        ("fp8", "columns transposed", slice(3, 17), 10),
        ("int8", "transposed", slice(None), 10),
        ("int8", "columns", slice(0, 1), 1),
        ("fp8_tensor", "every second", slice(None), 10),
        ("fp8_tensor", "columns", slice(3, 17), 10),
        ("fp8_blocks", "plain", slice(None), 300),
        ("bf16", "transposed", slice(None), 10),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sources_in_host_memory_travel_in_parts(cuda, monkeypatch, kind, layout, columns, rows, dtype):
    values = awkward_values(rows, 24, dtype, 5)
    uploads = import_module("ascend_quant.kernels.cuda.refit.uploads")
    monkeypatch.setattr(uploads, "UPLOAD", 3 * 24 * values.element_size())  # 3 rows
    case = Case(kind, values, layout, columns, first_row=0 if kind == "fp8_blocks" else 62, weight=3, origin=True)
    job = case.prepare(cuda.device, 1)
    jobs = [job._replace(tensors=[tensor.cpu() for tensor in job.tensors])]
    if cuda.interpreted:  # where all memory is the host's
        jobs = list(uploads.uploaded(*next(job.each())))
        assert len(jobs) == {"fp8_tensor": 1, "fp8_blocks": 3}.get(kind, -(-rows // 3))
    counters = new_counters(cuda.device, 2)
    cuda.module.write(jobs, counters)
    case.check_written()
    assert counters.read() == (case.changed(), case.digest(), {}) and counters.clamped == case.clamped()


def test_a_write_reads_another_source_each_time(kernels):
    case = Case("int8", awkward_values(20, 32, torch.bfloat16, 0))
    write = case.prepare(kernels.device, 0).batch.writes[0]
    for i, dtype in enumerate((torch.bfloat16, torch.float32, torch.float16, torch.bfloat16)):
        values = awkward_values(20, 32, dtype, i)
        flat = torch.cat([torch.zeros(i, dtype=dtype), values.flatten()])
        source = flat.to(kernels.device)[i:].view(20, 32)  # off the alignment of the one before
        kernels.module.write([Job.of(write, source)], new_counters(kernels.device, 1))
        codes, scale = oracle.quantize_weight(values)
        assert torch.equal(write.target.cpu(), codes) and torch.equal(write.scale.cpu(), scale)


def test_writes_that_are_kept_read_tensors_that_lie_anew_each_time(kernels):
    batch = WriteBatch([case.prepare(kernels.device, 0).batch.writes[0] for case in (_case(0), _case(1))], [1, 0])
    for turn in range(12):  # more ways to lie than are kept, the first ones again among them
        values = [awkward_values(20, 32, torch.bfloat16, 2 * turn + i) for i in range(2)]
        flat = torch.zeros(3 * 640 + 8, dtype=torch.bfloat16, device=kernels.device)
        starts = (turn % 3, 1280 + turn % 4)
        sources = [flat[start:][:640].view(20, 32) for start in starts]
        for source, value in zip(sources, values, strict=True):
            source.copy_(value)
        slots = np.array([turn, turn + 1])
        sources[1][3, 4] = math.nan
        counters = new_counters(kernels.device, 14)
        kernels.module.write([Job(batch, sources, [source.data_ptr() for source in sources], slots)], counters)
        assert counters.read()[2] == {turn + 1: 1}
        codes, scale = oracle.quantize_weight(values[0])
        assert torch.equal(batch.writes[1].target.cpu(), codes) and torch.equal(batch.writes[1].scale.cpu(), scale)


def _case(seed):
    return Case("int8", awkward_values(20, 32, torch.bfloat16, seed))


def test_a_write_of_no_rows_does_nothing(kernels):
    def empty(dtype, scale=None, kind=None):
        target = torch.empty(0, 8, dtype=dtype, device=kernels.device)
        write = CopyWrite(target=target) if scale is None else kind(target=target, scale=scale)
        return Job.of(write, torch.empty(0, 8, device=kernels.device))

    untouched = torch.ones((), device=kernels.device)
    jobs = [empty(torch.int8, torch.empty(0, device=kernels.device), Int8Write)]
    jobs += [empty(torch.float8_e4m3fn, untouched, Fp8Write), empty(torch.float32)]
    counters = new_counters(kernels.device, 1)
    kernels.module.write(jobs, counters)
    assert counters.read() == (0, 0, {}) and untouched == 1
    cases = [Case(kind, torch.ones(2, 8)) for kind in ("int8", "fp32")]
    kernels.module.write([*jobs, *(case.prepare(kernels.device, 0) for case in cases), *jobs], counters)
    for case in cases:
        case.check_written()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_not_finite_is_counted_by_source(kernels, kind, dtype):
    sources = [torch.randn(50, 40, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in range(3)]
    for row, column, bad in ((3, 4, math.nan), (40, 0, math.inf), (40, 39, -math.inf), (49, 7, -math.nan)):
        sources[1][row, column] = bad
    sources[2][20, 39] = math.inf
    jobs = [Case(kind, values, weight=1).prepare(kernels.device, slot) for slot, values in enumerate(sources)]
    counters = new_counters(kernels.device, 3)
    kernels.module.write(jobs, counters)
    expected = {1: 3 if kind in PREQUANTIZED else 4, 2: 1}  # of codes: rows, one of which has two
    assert counters.read()[2] == expected
    counters = new_counters(kernels.device, 3)
    kernels.module.write(jobs, counters, receipt=False)
    assert counters.read()[2] == expected
    if kind in ("int8", "int8_float32", "fp8"):  # the other rows are as ever
        write, _, _ = next(jobs[1].each())
        good = [row for row in range(50) if row not in (3, 40, 49)]
        expected = Case(kind, sources[1][good])
        assert torch.equal(write.target[good].cpu().view(torch.int8), expected.codes.view(torch.int8))
        assert torch.equal(write.scale[good].cpu(), expected.scale)
        assert not torch.isfinite(write.scale[[3, 40, 49]]).any()


@pytest.mark.parametrize(("scheme", "largest"), [("int8", 127), ("fp8", 448)])
def test_codes_that_no_quantization_gives_are_counted_by_rows(kernels, scheme, largest):
    values = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    [(_, sent)] = prequantized.coded([("w", values)], SCHEMES[scheme])
    sent, top = sent.view(torch.int8), torch.finfo(torch.bfloat16).max
    for row, scale in (
        (3, -1e-30),
        (17, 1.001 * top / largest),
        (18, 0.999 * top / largest),
        (40, 0.0),
        (49, math.nan),
    ):
        sent[row, 40:44] = torch.tensor([scale]).view(torch.int8)
    sent[[5, 6, 49], [0, 39, 20]] = torch.tensor([0x7F, -1, -128], dtype=torch.int8)  # e4m3: NaN, -NaN, -0
    source = sent.view(prequantized.codes_dtype(SCHEMES[scheme])).to(kernels.device)
    target, scale = (
        torch.zeros(50, 40, dtype=source.dtype, device=kernels.device),
        torch.zeros(50, device=kernels.device),
    )
    write = PrequantizedWrite.of(source[:, :40], target, scale=scale, whole=(0, 40))
    for receipt in (True, False):
        counters = new_counters(kernels.device, 1)
        kernels.module.write([Job.of(write, source)], counters, receipt=receipt)
        assert counters.read()[2] == {0: 3 if scheme == "int8" else 5}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_a_refit_heals_what_one_with_nan_left(kernels, kind):
    bad = awkward_values(10, 20, torch.bfloat16, 0)
    bad[5, 5] = math.nan
    case = Case(kind, awkward_values(10, 20, torch.bfloat16, 1))
    write = case.prepare(kernels.device, 0).batch.writes[0]
    for values in (bad, case.values):
        counters = new_counters(kernels.device, 1)
        kernels.module.write([Job.of(write, values.to(kernels.device).clone())], counters)
    case.check_written()
    assert counters.read()[1:] == (case.digest(), {})


@pytest.mark.parametrize("kind", ["int8", "fp8", "fp8_tensor", "fp8_blocks", "bf16", "fp16"])
def test_a_float32_that_becomes_infinite_on_the_way_is_counted(kernels, kind):
    one, three = torch.ones(5, 6), torch.ones(5, 6)
    one[2, 3] = 3.4e38
    three[2, 3], three[2, 5], three[4, 0] = 3.4e38, math.nan, -3.4e38
    counters = new_counters(kernels.device, 2)
    kernels.module.write([Case(kind, x).prepare(kernels.device, i) for i, x in enumerate((one, three))], counters)
    assert counters.read()[2] == {0: 1, 1: 3}


@pytest.mark.parametrize("kind", FLOAT32)
def test_a_float32_that_is_taken_as_it_is_may_be_larger_than_any_bf16(kernels, kind):
    values = torch.ones(5, 6)
    values[2, 3] = 3.4e38
    check(kernels, [Case(kind, values)])
    values[4, 1] = math.inf
    counters = new_counters(kernels.device, 1)
    kernels.module.write([Case(kind, values).prepare(kernels.device, 0)], counters)
    assert counters.read()[2] == {0: 1}


def test_codes_lost_to_static_scales_are_counted_beside_those_that_are_not(kernels):
    values = torch.tensor([[1.0, -1.0, 1.26, -1.28, -1.29, 1e30], [0.0, -0.0, 3.0, 0.0, 0.0, 0.0]])
    source, static_scale = values.to(kernels.device), torch.tensor([0.01, 0.0], device=kernels.device)
    codes, scale_N = torch.zeros(2, 6, dtype=torch.int8, device=kernels.device), torch.ones_like(static_scale)
    counters = new_counters(kernels.device, 1)
    write = Int8Write.of(source, codes, scale=scale_N, static_scale=static_scale)
    kernels.module.write([Job.of(write, source)], counters)
    counters.read()
    assert counters.clamped == 3  # -129, a huge one, and what a scale of 0 makes of 3
    assert codes.tolist() == [[100, -100, 126, -128, -128, 127], [0] * 6]
    assert torch.equal(scale_N, static_scale)


@pytest.mark.parametrize("kind", ["int8", "int8_float32", "fp8", "fp8_tensor"])
def test_what_is_not_finite_elsewhere_in_the_whole_rows_is_seen(kernels, kind):
    values = torch.ones(5, 6)
    values[2, 3] = math.nan
    counters = new_counters(kernels.device, 2)
    here, there = (Case(kind, values, columns=columns) for columns in (slice(2, 5), slice(0, 2)))
    kernels.module.write([here.prepare(kernels.device, 0), there.prepare(kernels.device, 1)], counters)
    assert counters.read()[2] == {0: 1, 1: 1}


def test_more_sources_than_one_block_of_counters(kernels):
    slots = Counters.BLOCK + 2
    counters = new_counters(kernels.device, slots)
    source = torch.full((1, 1), math.inf, device=kernels.device)
    write = CopyWrite(target=torch.zeros(1, 1, device=kernels.device), row_stride=1)
    kernels.module.write([Job.of(write, source, slot) for slot in (0, slots - 1, slots - 1)], counters)
    assert counters.read()[2] == {0: 1, slots - 1: 2}


def test_cuda_names_what_it_has_no_kernel_for(cuda):
    long, wide = torch.zeros(1, 65537, device=cuda.device), torch.zeros(2, 2, device=cuda.device, dtype=torch.float64)
    with pytest.raises(ValueError, match="65537"):
        cuda.module.write([Job.of(CopyWrite.of(long, long.clone()), long)], new_counters(cuda.device, 1))
    with pytest.raises(ValueError, match="float64"):
        cuda.module.write([Job.of(CopyWrite.of(wide, wide.clone()), wide)], new_counters(cuda.device, 1))
