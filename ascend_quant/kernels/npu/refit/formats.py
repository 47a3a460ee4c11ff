"""Memory layout of a weight on an NPU: transposed, in plain format (ND) or in panels (FRACTAL_NZ).

A weight with N output channels and K input channels is stored as (K, N), a stack of experts as (E, K, N). In
FRACTAL_NZ, int8 is stored as the array (N / 32, K, 32), with N and K rounded up to 32 and 16: one panel per 32
channels. A stack consists of its experts' panels, one after the other (torch_npu FormatHelper.cpp, InferShapeNDToNZ;
aclnnQuantMatmulWeightNz.md).

Both classes read and write rows of K elements by index, e * N + n, at an address that never changes. torch_npu's copies
into part of a FRACTAL_NZ tensor are wrong or copy the whole tensor (CopyKernel.cpp), so panels are written through a
plain tensor on the same memory. The first such view is verified against torch_npu's own cast.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import torch

from ascend_quant.kernels.npu.ops import FRACTAL_NZ, check_cast

ND = 2
PANEL = 32  # int8 channels per panel
DEPTH = 16  # K is rounded up to a multiple of this


class Transposed:
    """Rows of a plain (..., K, N) tensor.

    Args:
        tensor: the buffer that the engine's kernels read; its address must not change.
    """

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor
        self._stack_EKN = tensor.unsqueeze(0) if tensor.dim() == 2 else tensor
        experts, length, self._channels = self._stack_EKN.shape
        self.shape = torch.Size((experts * self._channels, length))

    def __getitem__(self, rows: slice) -> torch.Tensor:
        """Return rows (n, K), contiguous or with a step, as a copy or a view."""
        return _joined([view_EKN.transpose(1, 2).flatten(0, 1) for view_EKN in self._views(rows)], self._stack_EKN)

    def sampled(self) -> None:
        """Return None, since only sleep level 2 needs such a view, and NPUs refuse it."""

    def write(self, first: int, codes_NK: torch.Tensor) -> None:
        """Write rows, starting at row `first`."""
        start = 0
        for view_EKN in self._views(slice(first, first + len(codes_NK))):
            experts, length, channels = view_EKN.shape
            part_NK = _part(codes_NK, start, experts * channels)
            view_EKN.copy_(part_NK.view(experts, channels, length).transpose(1, 2))
            start += experts * channels

    def _views(self, rows: slice) -> Iterator[torch.Tensor]:
        """Return the (E, K, n) columns of the experts that contain some of the rows."""
        for experts, here in _by_part(rows, self.shape[0], self._channels):
            yield self._stack_EKN[experts, :, here]


class Panels:
    """Rows of a FRACTAL_NZ tensor (..., K, N).

    Args:
        tensor: the buffer that the engine's kernels read; its address must not change.
        memory: int8, a plain tensor on the same bytes, all of them.
    """

    def __init__(self, tensor: torch.Tensor, memory: torch.Tensor):
        self.tensor = tensor
        experts = tensor.shape[0] if tensor.dim() == 3 else 1
        length, channels = tensor.shape[-2:]
        self.shape = torch.Size((experts * channels, length))
        if channels % PANEL == 0:  # the experts' panels are contiguous, as those of one matrix
            experts, channels = 1, experts * channels
        self._channels = channels
        panels, depth = -(-channels // PANEL), -(-length // DEPTH) * DEPTH
        self._panels_EPKC = memory.view(experts, panels, depth, PANEL)[:, :, :length]

    def __getitem__(self, rows: slice) -> torch.Tensor:
        """Return rows (n, K), contiguous or with a step, as a copy or a view."""
        found = []
        for experts, here in _by_part(rows, self.shape[0], self._channels):
            for expert in range(experts.start, experts.stop):
                found += self._of_expert(expert, here)
        return _joined(found, self._panels_EPKC)

    def _of_expert(self, expert: int, rows: slice) -> list[torch.Tensor]:
        if rows.step % PANEL == 0:  # one lane of some panels
            last = range(rows.start, rows.stop, rows.step)[-1]
            panels = slice(rows.start // PANEL, last // PANEL + 1, rows.step // PANEL)
            return [self._panels_EPKC[expert, panels, :, rows.start % PANEL]]
        if rows.step > 1:
            numbers = range(self._channels)[rows]
            return [self._panels_EPKC[expert, n // PANEL, :, n % PANEL].unsqueeze(0) for n in numbers]
        panels = slice(rows.start // PANEL, -(-rows.stop // PANEL))
        rows_NK = self._panels_EPKC[expert, panels].transpose(1, 2).flatten(0, 1)
        return [_part(rows_NK, rows.start % PANEL, rows.stop - rows.start)]

    def sampled(self) -> None:
        """Return None, since only sleep level 2 needs such a view, and NPUs refuse it."""

    def write(self, first: int, codes_NK: torch.Tensor) -> None:
        """Write rows, starting at row `first`."""
        start = 0
        for experts, here in _by_part(slice(first, first + len(codes_NK)), self.shape[0], self._channels):
            for expert in range(experts.start, experts.stop):
                for panels, lanes in _by_panel(here):
                    count, width = panels.stop - panels.start, lanes.stop - lanes.start
                    part_PCK = _part(codes_NK, start, count * width).view(count, width, self.shape[1])
                    view_PKC = self._panels_EPKC[expert, panels]
                    view_PKC = view_PKC if width == PANEL else view_PKC[:, :, lanes]
                    view_PKC.copy_(part_PCK.transpose(1, 2))
                    start += count * width


def new_codes(shape: Sequence[int], nz: bool) -> Transposed | Panels:
    """Allocate zeros (.., K, N), int8, on the current device, in FRACTAL_NZ if requested."""
    codes = torch.zeros(shape, dtype=torch.int8)
    if nz:
        import torch_npu

        check_cast(codes, FRACTAL_NZ)
        codes = torch_npu.npu_format_cast(codes, FRACTAL_NZ)
    return layout_of(codes)


def layout_of(tensor: torch.Tensor) -> Transposed | Panels:
    """Return the row layout of an int8 tensor on an NPU, by the format that torch_npu reports.

    Raises:
        RuntimeError: torch_npu's FRACTAL_NZ differs from the layout implemented here.
    """
    import torch_npu

    if torch_npu.get_npu_format(tensor) != FRACTAL_NZ:
        return Transposed(tensor)
    _check_panels(tensor.device)
    return Panels(tensor, _plain_memory(tensor))


def _plain_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes of a FRACTAL_NZ tensor as a plain tensor, which does not keep them alive.

    Views of the tensor would share its format; a new storage has none.
    """
    import torch_npu

    size = tensor.untyped_storage().nbytes()
    storage = torch_npu._C._construct_storage_from_data_pointer(tensor.data_ptr(), tensor.device, size)
    return torch.empty(0, dtype=torch.int8, device=tensor.device).set_(storage, 0, (size,), (1,))


@cache
def _check_panels(device: torch.device) -> None:
    """Verify the layout implemented here against torch_npu's own cast, once per process."""
    import torch_npu

    for shape in ((40, 72), (32, 64), (2, 24, 40)):
        w_EKN = torch.randint(-127, 128, shape, dtype=torch.int8, device="cpu")
        cast = torch_npu.npu_format_cast(w_EKN.to(device), FRACTAL_NZ)
        if torch_npu.get_npu_format(cast) != FRACTAL_NZ:
            raise RuntimeError(
                "torch_npu does not cast to FRACTAL_NZ: set torch.npu.config.allow_internal_format = True "
                "before the model is built (vllm-ascend's worker does), or keep weights in ND format with "
                "the option nz: false"
            )
        rows_NK = Panels(cast, _plain_memory(cast))[:].cpu()
        if not torch.equal(rows_NK, w_EKN.transpose(-1, -2).reshape(rows_NK.shape)):
            raise RuntimeError(
                f"torch_npu {torch_npu.__version__} has another FRACTAL_NZ layout than (N / 32, K, 32): "
                "please report it, and keep weights in ND format with the option nz: false"
            )


def _joined(found: list[torch.Tensor], memory: torch.Tensor) -> torch.Tensor:
    """Concatenate rows (n, K); a single part is returned as a view."""
    if not found:
        return memory.new_empty(0, memory.shape[-2])
    return found[0] if len(found) == 1 else torch.cat(found)


def _part(rows_NK: torch.Tensor, start: int, count: int) -> torch.Tensor:
    return rows_NK if len(rows_NK) == count else rows_NK[start : start + count]


def _by_part(rows: slice, total: int, channels: int) -> Iterator[tuple[slice, slice]]:
    """Yield (experts, channels) for rows numbered through all experts, grouping experts with the same channels."""
    numbers = range(total)[rows]
    if not len(numbers):
        return
    experts, here = slice(0, 0), None
    for expert in range(numbers[0] // channels, numbers[-1] // channels + 1):
        first = expert * channels
        skipped = max(0, -(-(first - numbers.start) // numbers.step))
        begin = numbers.start + skipped * numbers.step - first
        end = min(numbers[-1] - first + 1, channels)
        part = slice(begin, end, numbers.step)
        if begin >= end:
            continue
        if here == part and experts.stop == expert:
            experts = slice(experts.start, expert + 1)
            continue
        if here is not None:
            yield experts, here
        experts, here = slice(expert, expert + 1), part
    yield experts, here


def _by_panel(rows: slice) -> Iterator[tuple[slice, slice]]:
    """Yield (panels, lanes): runs of whole panels, and partial panels at the ends."""
    start = rows.start
    while start < rows.stop:
        panel, lane = divmod(start, PANEL)
        whole = (rows.stop - start) // PANEL
        if lane == 0 and whole:
            yield slice(panel, panel + whole), slice(0, PANEL)
            start += whole * PANEL
        else:
            count = min(PANEL - lane, rows.stop - start)
            yield slice(panel, panel + 1), slice(lane, lane + count)
            start += count
