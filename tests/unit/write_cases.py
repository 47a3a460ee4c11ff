"""Writes of awkward values in awkward places, and what the oracle makes of them.

A case is built on the CPU from a few numbers, as flat buffers; tests put these on the device and compare them whole,
so that a write beside the target shows. Gaps of a source hold NaN, so that reading one shows too.
"""

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from ascend_quant import oracle
from ascend_quant.kernels.counters import SAMPLE, Counters
from ascend_quant.kernels.writes import CopyWrite, Fp8Write, Int8Write, Job, PrequantizedWrite, RowWrite
from ascend_quant.schemes import SCHEMES

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FLOAT32 = ("int8_float32", "int8_static")  # kinds whose values are not rounded to BF16
QUANTIZED = ("int8", *FLOAT32, "fp8", "fp8_tensor", "fp8_blocks")  # kinds
COPIES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}  # kinds that are plain copies
PREQUANTIZED = {"int8 codes": "int8", "fp8 codes": "fp8"}  # kinds that come as codes, and by which kind these were made
KINDS = (*QUANTIZED, *PREQUANTIZED, *COPIES)
LAYOUTS = ("plain", "aligned", "shifted", "every second", "sparse", "transposed", "columns", "columns transposed")
LARGEST = 3.3895313892515355e38  # of BF16


def awkward_values(rows: int, columns: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """(rows, columns): each row of some kind that a kernel may get wrong; finite, after rounding to BF16 too."""
    generator = torch.Generator().manual_seed(seed)
    result = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    for row in result:
        kind, power = (int(torch.randint(n, (), generator=generator)) for n in (9, 200))
        sign = row.sign()
        if kind == 0:
            row.copy_(0.0 * sign)  # and -0.0
        elif kind == 1:  # denormal BF16 numbers
            row.copy_(sign * torch.randint(0, 128, row.shape, generator=generator) * 2.0**-133)
        elif kind == 2:  # about where rows count as zeros
            row.copy_(row.clamp(-1, 1) * (2.1 if power < 100 else 1.0) * 2.0**-100)
        elif kind == 3:
            row.copy_(row.clamp(-1, 1) * LARGEST)
        elif kind == 4:  # ties between two codes: the scale is a power of two
            row.copy_(sign * torch.randint(0, 255, row.shape, generator=generator))
            row[0] = 254
            row.mul_(2.0 ** (power - 100))
        elif kind == 5:  # half of the largest, whose quotient is 63.5 give or take the scale's rounding
            row.copy_(torch.where(row > 0.5, 1.0, 0.5) * sign * row[0].to(torch.bfloat16))
        elif kind == 6:
            row.mul_(10.0 ** (power / 10 - 10))
    if dtype == torch.float16:
        return result.clamp(-65504, 65504).to(dtype)
    result = result.clamp(-LARGEST, LARGEST).to(torch.bfloat16)
    if dtype == torch.float32:  # low halves about the middle between two BF16 numbers
        lows = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
        low = lows[torch.randint(0, len(lows), result.shape, generator=generator)]
        high = result.float().view(torch.int32)
        low[(high & 0x7FFF0000 == 0x7F7F0000) | (result == 0)] = 0  # neither to Inf nor zeros to something
        result = (high | low).view(torch.float32)
    return result


@dataclass
class Case:
    """One write, whose source is `values` (or columns of it) laid out in some way.

    Attributes:
        columns: which of the values' columns are the matrix; all of them are its whole rows.
        origin: whether the source tensor begins before the matrix, as that of a plan does.
        scale_before: what the scale's place holds before.
    """

    kind: str
    values: torch.Tensor
    layout: str = "plain"
    columns: slice = field(default_factory=lambda: slice(None))
    first_row: int = 0
    weight: int = 1
    gap: int = 0
    origin: bool = False
    scale_before: float = 7.0

    def __post_init__(self) -> None:
        self.matrix = self.values[:, self.columns]
        self.static_scale = self._static_scale() if self.kind == "int8_static" else None
        self.codes, self.scale = self._by_oracle()
        rows, columns = self.matrix.shape
        bits = oracle.as_integers(self.codes)
        differing = torch.arange(1, rows * columns + 1).view(rows, columns) * 4 % 5 % 2  # two of five elements
        old = (bits ^ differing.to(bits.dtype)).view(self.codes.dtype)
        self.strides = (columns + self.gap, 1)
        self.place = 2 * self.strides[0] + self.gap // 2  # between guard rows
        self.before = torch.full(((rows + 4) * self.strides[0],), 77).to(self.codes.dtype)
        self._view(self.before).copy_(old)
        self.after = self.before.clone()
        self._view(self.after).copy_(self.codes)

    def _view(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.as_strided(self.codes.shape, self.strides, self.place)

    def _static_scale(self) -> torch.Tensor:
        """A scale a row: too small, just right, too large or 0."""
        absmax = self.values.float().nan_to_num(1, 1, 1).abs().amax(-1)
        parts = torch.tensor([1 / 127, 1 / 127.5, 0.3 / 127, 2 / 127, 0])
        return torch.where(absmax < 2.0**-90, 1.0, absmax * parts[torch.arange(len(absmax)) * 7 % 11 % 5])

    def _by_oracle(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.kind in COPIES:
            return self.matrix.to(COPIES[self.kind]), None
        if self.static_scale is not None:
            return oracle.quantize_given(self.matrix, self.static_scale)[0], self.static_scale
        if self.kind == "int8_float32":
            return oracle.quantize_rows(self.matrix, self.values.float().abs().amax(-1))
        absmax = self.values.to(torch.bfloat16).float().abs().amax(-1)
        kind = PREQUANTIZED.get(self.kind, self.kind)
        return {
            "int8": lambda: oracle.quantize_weight(self.matrix, absmax),
            "fp8": lambda: oracle.quantize_fp8_rows(self.matrix, absmax),
            "fp8_tensor": lambda: (
                oracle.quantize_fp8_rows(self.matrix, absmax.max().expand(len(absmax)))[0],
                oracle.quantize_fp8_tensor(self.values)[1].expand(len(absmax)),
            ),
            "fp8_blocks": lambda: oracle.quantize_fp8_blocks(self.matrix),
        }[kind]()

    def prepare(self, device: torch.device, slot: int) -> Job:
        """The job, with all its memory on `device`."""
        rows, length = self.values.shape
        strides, skipped = {
            "plain": ((length, 1), 0),
            "aligned": (((length + 31) // 16 * 16, 1), 32),
            "shifted": ((length + 5, 1), 3),
            "every second": ((2 * length, 1), 16),
            "sparse": (((2 * length + 15) // 16 * 16, 2), 0),
            "transposed": ((1, rows), 0),
            "columns": ((length, 1), 1),
            "columns transposed": ((1, rows + 3), 5),
        }[self.layout]
        if self.kind in PREQUANTIZED:
            strides, skipped, flat = self._prequantized_rows()
        else:
            flat = self._laid_out(strides, skipped)
        source = flat.to(device)[0 if self.origin else skipped :]
        first = skipped if self.origin else 0
        whole = None if self.matrix.shape == self.values.shape and self.kind not in PREQUANTIZED else (first, length)
        self.target_buffer = self.before.to(device, copy=True)
        self.scale_buffer = self.target_scale = None
        if self.scale is not None:
            self.scale_buffer = torch.full((self.scale.numel() + 4,), self.scale_before, device=device)
            self.target_scale = self.scale_buffer[2:-2].view(self.scale.shape)
        kind, more = self._write(device)
        where = {
            "target": self._view(self.target_buffer),
            "first_row": self.first_row,
            "weight": self.weight,
            "offset": first + (self.columns.start or 0) * strides[1],
            "row_stride": strides[0],
            "column_stride": strides[1],
            "whole": whole,
        }
        return Job.of(kind(**where, **more), source, slot)

    def _write(self, device: torch.device) -> tuple[type[RowWrite], dict]:
        """The class of the write, and the fields that it alone has."""
        if self.kind in COPIES:
            return CopyWrite, {}
        scale = {"scale": self.target_scale}
        if self.kind in PREQUANTIZED:
            return PrequantizedWrite, scale
        if self.kind.startswith("fp8"):
            tensor_rows = (0, len(self.values)) if self.kind == "fp8_tensor" else None
            return Fp8Write, scale | {"tensor_rows": tensor_rows}
        if self.static_scale is not None:
            return Int8Write, scale | {"static_scale": self.static_scale.to(device)}
        return Int8Write, scale | {"skip_bf16_cast": self.kind == "int8_float32"}

    def _laid_out(self, strides: tuple[int, int], skipped: int) -> torch.Tensor:
        rows, length = self.values.shape
        flat = torch.full((skipped + (rows - 1) * strides[0] + (length - 1) * strides[1] + 9,), float("nan"))
        flat = flat.to(self.values.dtype)
        flat.as_strided(self.values.shape, strides, skipped).copy_(self.values)
        return flat

    def _prequantized_rows(self) -> tuple[tuple[int, int], int, torch.Tensor]:
        """The whole rows' codes, each with its scale behind it: strides, where they begin, and the memory."""
        rows, length = self.values.shape
        codes, scale = oracle.quantize(self.values.to(torch.bfloat16), SCHEMES[PREQUANTIZED[self.kind]])
        stride, skipped = {"aligned": ((length + 31) // 16 * 16, 32), "shifted": (length + 7, 3)}.get(
            self.layout, (length + 4, 0)
        )
        flat = torch.full((skipped + rows * stride,), 77, dtype=torch.int8)
        flat.as_strided((rows, length), (stride, 1), skipped).copy_(codes.view(torch.int8))
        flat.as_strided((rows, 4), (stride, 1), skipped + length).copy_(scale.view(torch.int8).view(rows, 4))
        return (stride, 1), skipped, flat.view(codes.dtype)

    def check_written(self) -> None:
        """Every byte is as the oracle says, or as it was."""
        assert_same(self.target_buffer, self.after)
        if self.scale is not None:
            assert_same(self.target_scale, self.scale)
            guards = self.scale_buffer[[0, 1, -2, -1]].cpu()
            assert_same(guards, torch.full((4,), self.scale_before))

    def changed(self) -> int:
        """Codes that differ, counted one by one, in the rows that are compared."""
        if self.scale is None:
            return 0
        old, new = self._view(self.before).view(torch.int8).tolist(), self.codes.view(torch.int8).tolist()
        return sum(
            a != b
            for row in range(len(old))
            if (self.first_row + row) % SAMPLE == 0
            for a, b in zip(old[row], new[row], strict=True)
        )

    def clamped(self) -> int:
        """Codes that the static scales lose."""
        if self.static_scale is None:
            return 0
        return int(oracle.quantize_given(self.matrix, self.static_scale)[1].sum())

    def digest(self) -> int:
        """The codes' digest, and that of the scales 3 times, times the tensor's weight."""
        found, weights = [oracle.digest(self.codes, self.first_row)], [self.weight]
        if self.scale is not None:
            first_row = self.first_row // (oracle.BLOCK if self.kind == "fp8_blocks" else 1)
            found.append(oracle.digest(self.scale, first_row))
            weights.append(3 * self.weight)
        return oracle.add_digests(*found, weights=weights)


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bytes."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    differs = (oracle.as_integers(found.cpu()) != oracle.as_integers(expected)).nonzero().tolist()
    assert not differs, f"{len(differs)} of {expected.numel()} elements differ, first {differs[:5]}"


def new_counters(device: torch.device, slots: int, kind: type[Counters] = Counters) -> Counters:
    """Counters with some slots."""
    counters = kind(device)
    counters.new_slots(slots)
    return counters


def written(kernels, cases: list[Case], receipt: bool = True) -> Counters:
    """Write the cases in one batch, each in the slot of its place, and check the bytes."""
    counters = new_counters(kernels.device, len(cases), kernels.module.Counters)
    kernels.module.write([case.prepare(kernels.device, i) for i, case in enumerate(cases)], counters, receipt)
    for case in cases:
        case.check_written()
    return counters


def check(kernels, cases: list[Case]) -> None:
    """Write the cases in one batch and check bytes, counters and digest."""
    counters = written(kernels, cases)
    changed, digest, bad = counters.read()
    assert bad == {}
    assert changed == sum(case.changed() for case in cases)
    assert digest == oracle.add_digests(*(case.digest() for case in cases))
    assert counters.clamped == sum(case.clamped() for case in cases)


LENGTHS = (1, 2, 7, 16, 33, 48, 100, 128, 255, 256, 300, 700)
LONG = (1000, 1280, 3001)


@st.composite
def cases(draw) -> Case:
    """Any case of moderate size."""
    kind = draw(st.sampled_from(KINDS))
    rows, length = draw(
        st.tuples(st.integers(1, 40), st.sampled_from(LENGTHS[:6]))
        | st.tuples(st.integers(1, 9), st.sampled_from(LENGTHS))
        | st.tuples(st.integers(1, 2), st.sampled_from(LONG))
    )
    if kind == "fp8_blocks":
        rows *= draw(st.sampled_from([1, 16]))
    layout = draw(st.sampled_from(LAYOUTS))
    columns = slice(None)
    if layout.startswith("columns") and kind != "fp8_blocks":
        start = draw(st.integers(0, length - 1))
        columns = slice(start, draw(st.integers(start + 1, length)))
    first_rows = (0, 1, 63, 100, 2**31 - 3, 2**33 + 60)
    if kind == "fp8_blocks":
        first_rows = (0, 128, 2**31)
    values = awkward_values(rows, length, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2**31)))
    return Case(
        kind,
        values.clamp(-6e4, 6e4) if kind == "fp16" else values,
        layout,
        columns,
        draw(st.sampled_from(first_rows)),
        draw(st.integers(0, 2**31 - 1)) * 2 + 1,
        draw(st.sampled_from((0, 1, 16))),
        draw(st.booleans()),
        draw(st.sampled_from((0.0, -1.0, 7.0, 1e30, float("nan")))),
    )
