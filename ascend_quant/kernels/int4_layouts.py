"""int4 weight layouts of serving kernels, such as Marlin's, which are written in place, row by row.

PackedRows   (.., N, K/8) int32: eight adjacent codes of a row, as in checkpoints (CPU)
MarlinTiles  (.., K/16, 2N) int32: tiles of 16 input by 64 output channels, as vLLM's Marlin kernels read them (CUDA)

Rows are numbered through all matrices of a stack. The refit writes scales as (.., N, K/group); a copy in a kernel's own
layout is updated in place, once per refit.
"""

from collections.abc import Iterator

import torch

from ascend_quant.kernels.counters import SAMPLE
from ascend_quant.oracle import pack_int4, unpack_int4

TILE_K, TILE_N = 16, 64
LANES, NEIGHBOURS, PER_WORD = 32, 4, 8


class PackedRows:
    """Rows of packed codes.

    Args:
        shape: (.., N, K) of the codes.
        group: elements of a row that share a scale.

    Attributes:
        tensor: int32, the buffer that the engine's kernels read.
        scales: BF16 (.., N, K / group), written by the refit and read by the engine's kernels.
        shape: (all rows, K).
    """

    def __init__(self, shape: tuple[int, ...], group: int, device: torch.device | None = None):
        self.tensor = torch.zeros(*shape[:-1], shape[-1] // PER_WORD, dtype=torch.int32, device=device)
        self.scales = torch.zeros(*shape[:-1], shape[-1] // group, dtype=torch.bfloat16, device=device)
        self.shape = torch.Size((self.tensor[..., 0].numel(), shape[-1]))

    def __getitem__(self, rows: slice) -> torch.Tensor:
        return unpack_int4(self.tensor.flatten(0, -2)[rows])

    def write(self, first: int, codes_NK: torch.Tensor) -> None:
        """Write rows, starting at row `first`."""
        self.tensor.flatten(0, -2)[first : first + len(codes_NK)].copy_(pack_int4(codes_NK))

    def sampled(self) -> torch.Tensor:
        """Return the words of every SAMPLE-th row."""
        return self.tensor.flatten(0, -2)[::SAMPLE]

    def refresh(self) -> None:
        """Do nothing: no buffer is derived."""


class MarlinTiles:
    """Tiles of packed codes in the layout of vLLM's Marlin kernels.

    Args:
        shape: (.., N, K) of the codes; N a multiple of 64, K of 16.

    Attributes:
        tensor, scales, shape: see `PackedRows`.
        served_scales: BF16 (.., K / group, N), the scales as the kernels read them.

    Raises:
        ValueError: the shape does not consist of whole tiles.
    """

    def __init__(self, shape: tuple[int, ...], group: int, device: torch.device | None = None):
        *stack, rows, length = shape
        if rows % TILE_N or length % TILE_K:
            raise ValueError(
                f"int4 weights of {rows} output and {length} input channels a rank: the Marlin kernels need "
                f"multiples of {TILE_N} and {TILE_K}; choose another tensor parallel size, or keep the layer "
                "in BF16 with `ignore`"
            )
        self.tensor = torch.zeros(*stack, length // TILE_K, rows * TILE_K // PER_WORD, dtype=torch.int32, device=device)
        self.scales = torch.zeros(*stack, rows, length // group, dtype=torch.bfloat16, device=device)
        self.served_scales = self.scales.new_zeros(*stack, length // group, rows)
        self.matrices = self.tensor.view(-1, *self.tensor.shape[-2:])
        self.rows = rows
        self.shape = torch.Size((len(self.matrices) * rows, length))
        self._order = tile_order(self.tensor.device)

    def __getitem__(self, rows: slice) -> torch.Tensor:
        start, stop, step = rows.indices(self.shape[0])
        parts = [self.tensor.new_zeros(0, self.shape[1], dtype=torch.int8)]
        for matrix, first, last in self._spans(start, max(start, stop)):
            begin = first // TILE_N * TILE_N
            parts.append(self._unpacked(matrix, begin, last)[first - begin : last - begin])
        return torch.cat(parts)[::step]

    def write(self, first: int, codes_NK: torch.Tensor) -> None:
        """Write rows, starting at row `first`."""
        done = 0
        for matrix, start, stop in self._spans(first, first + len(codes_NK)):
            codes = codes_NK[done : done + stop - start]
            done += stop - start
            begin, end = start // TILE_N * TILE_N, -(-stop // TILE_N) * TILE_N
            if (begin, end) != (start, stop):  # partial tiles, whose other rows are kept
                whole = self._unpacked(matrix, begin, end)
                whole[start - begin : stop - begin] = codes
                codes = whole
            matrix[:, self._columns(begin, end)] = self._packed(codes)

    def sampled(self) -> torch.Tensor:
        """Return the words of each tile's first row, which is every SAMPLE-th row; they also contain its ninth row."""
        words = TILE_N * TILE_K // PER_WORD
        return self.tensor.view(-1, words)[:, : 4 * NEIGHBOURS : NEIGHBOURS]

    def refresh(self) -> None:
        """Update `served_scales`.

        The scales of 64 channels are interleaved as eight runs of eight; with one group per row, as four runs of four
        pairs.
        """
        by_input = self.scales.transpose(-2, -1)
        runs = (8, 8, 1) if by_input.shape[-2] > 1 else (4, 4, 2)
        self.served_scales.copy_(by_input.unflatten(-1, (-1, *runs)).transpose(-3, -2).flatten(-4))

    def _spans(self, start: int, stop: int) -> Iterator[tuple[torch.Tensor, int, int]]:
        """Return the matrices that contain the rows, each with the range of its rows."""
        for number in range(start // self.rows, -(-stop // self.rows)):
            base = number * self.rows
            yield self.matrices[number], max(start - base, 0), min(stop - base, self.rows)

    def _columns(self, begin: int, end: int) -> slice:
        return slice(begin * TILE_K // PER_WORD, end * TILE_K // PER_WORD)

    def _packed(self, codes_NK: torch.Tensor) -> torch.Tensor:
        """Pack the codes of whole tiles into Marlin's words (K / 16, 2N)."""
        tiles = codes_NK.unflatten(0, (-1, TILE_N)).unflatten(-1, (-1, TILE_K)).permute(2, 0, 1, 3)
        return pack_int4(tiles.flatten(2)[..., self._order].flatten(1))

    def _unpacked(self, matrix: torch.Tensor, begin: int, last: int) -> torch.Tensor:
        """Return the codes of whole tiles from row `begin`, the first of a tile, up to row `last` or beyond."""
        end = -(-last // TILE_N) * TILE_N
        values = unpack_int4(matrix[:, self._columns(begin, end)]).unflatten(1, (-1, TILE_N * TILE_K))
        tiles = torch.empty_like(values)
        tiles[..., self._order] = values
        return tiles.unflatten(2, (TILE_N, TILE_K)).permute(1, 2, 0, 3).flatten(2).flatten(0, 1)


def tile_order(device: torch.device) -> torch.Tensor:
    """Return which element n * 16 + k of a tile each of Marlin's 1024 positions holds.

    A word contains the operands of one lane of a warp: of one 16 x 16 part of the tile, the input channels 2l, 2l + 1,
    2l + 8 and 2l + 9 (l = lane % 4) of two output channels 8 apart. Four neighbouring parts have a word each. Even
    elements come first, since dequantization extracts every other nibble.
    """
    lane = torch.arange(LANES, device=device).view(-1, 1, 1, 1)
    part = torch.arange(NEIGHBOURS, device=device).view(1, -1, 1, 1)
    nibbles = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7], device=device).view(1, 1, -1, 1)
    half, which = nibbles // 4, nibbles % 4
    n = 16 * part + 8 * half + lane // 4
    k = 2 * (lane % 4) + which % 2 + 8 * (which // 2)
    return (n * TILE_K + k).flatten()
