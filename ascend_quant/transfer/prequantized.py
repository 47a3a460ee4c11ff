"""Pre-quantized weights: a trainer sends int8 rows, each followed by its scale, which halves the bytes of BF16.

    trainer   q_proj.weight        (.., N, K) floats
    sent      q_proj.weight:int8   (.., N, K + 16) int8: rows of K codes, the 4 bytes of a float32 scale, 12 zeros
    engine    q_proj.weight        its loaders see the codes, a view (.., N, K); kernels read the scales after the codes

Complete rows are quantized, so the bytes equal those that the engine would compute from BF16 weights; if a loader
slices rows (tensor parallelism), the scale is still that of the complete row. A row with NaN or Inf has a scale that
is not finite.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

from ascend_quant.kernels import kernels_for
from ascend_quant.kernels.storage import CODES
from ascend_quant.kernels.writes import SCALE_BYTES, Fp8Write, Int8Write, Job
from ascend_quant.schemes import SCHEMES, Scheme
from ascend_quant.transfer.errors import RefitError
from ascend_quant.transfer.validate import NamedTensor, lies_as_read

TAIL = 16  # bytes after the codes of a row; keeps rows of a multiple of 16 codes aligned
SCHEMES_SENT = tuple(name for name, scheme in SCHEMES.items() if scheme.shares == "row")
MARK = ":"


def sent_name(name: str, scheme: Scheme) -> str:
    """Return the name under which a weight is sent pre-quantized in this scheme."""
    return f"{name}{MARK}{scheme.name}"


def parted(name: str) -> tuple[str, bool]:
    """Split the name of a sent tensor into the weight's name and whether it is pre-quantized."""
    own, _, scheme = name.rpartition(MARK)
    return (own, True) if own and scheme in SCHEMES_SENT else (name, False)


def sent_shape(shape: Sequence[int]) -> torch.Size:
    """Return the shape of the sent tensor of a pre-quantized weight (..., K): each row is followed by its scale."""
    return torch.Size((*shape[:-1], shape[-1] + TAIL))


def codes_dtype(scheme: Scheme) -> torch.dtype:
    """Return the dtype of the sent tensor of a pre-quantized weight: one byte per element."""
    return CODES[scheme.codes]


def codes_of(name: str, sent: torch.Tensor) -> torch.Tensor:
    """Return a view (.., N, K) of the quantized values in a received tensor.

    Raises:
        RefitError: the tensor is not pre-quantized rows with scales.
    """
    scheme = SCHEMES[name.rpartition(MARK)[2]]
    if sent.dim() < 2 or sent.dtype != codes_dtype(scheme) or sent.shape[-1] <= TAIL:
        raise RefitError(
            f"{name}: got {sent.dtype} of shape {tuple(sent.shape)}; send {codes_dtype(scheme)} rows, each "
            f"followed by {TAIL} bytes (ascend_quant.transfer.prequantized.encode)"
        )
    if not lies_as_read(sent):
        negative = ", with the negative bit set" if sent.is_neg() else ""
        raise RefitError(
            f"{name}: got shape {tuple(sent.shape)} with strides {sent.stride()}{negative}, but pre-quantized "
            "rows must be contiguous; send tensor.resolve_neg().contiguous()"
        )
    return sent[..., :-TAIL]


def encode(parts: Sequence[torch.Tensor], sent: Sequence[torch.Tensor], scheme: Scheme) -> None:
    """Quantize rows on one device into the tensors to send; asynchronous.

    Args:
        parts: (.., N, K) floats, whole rows of weights; float32 is rounded to BF16 first, as an engine does.
        sent: (.., N, K + 16), contiguous, in the dtype of `codes_dtype`.
    """
    pairs = _as_matrices(parts, sent)
    if not pairs:
        return
    device = pairs[0][0].device
    kernels = kernels_for(device)
    ends = [*accumulate(len(w_NK) for w_NK, _ in pairs)]
    scale = torch.empty(ends[-1], dtype=torch.float32, device=device)
    kind = Int8Write if codes_dtype(scheme) == torch.int8 else Fp8Write
    writes = [
        kind.of(w_NK, sent_NL[:, :-TAIL], scale=scale[end - len(sent_NL) : end])
        for (w_NK, sent_NL), end in zip(pairs, ends, strict=True)
    ]
    counters = kernels.Counters(device)
    counters.new_slots(len(writes))
    kernels.write([Job.of_each(writes, [w_NK for w_NK, _ in pairs], range(len(writes)))], counters, receipt=False)
    _put_scales(scale, [sent_NL for _, sent_NL in pairs])


def _as_matrices(
    parts: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return parts as (N, K), with views (N, K + 16) of the sent tensors; empty parts are omitted."""
    return [
        (part.reshape(-1, part.shape[-1]), one.view(-1, one.shape[-1]))
        for part, one in zip(parts, sent, strict=True)
        if part.numel()
    ]


def _put_scales(scale: torch.Tensor, sent: Sequence[torch.Tensor]) -> None:
    """Write the float32 scales (one per row, of all tensors in order) after the rows' quantized values."""
    tail = torch.zeros(len(scale), TAIL, dtype=torch.int8, device=scale.device)
    tail[:, :SCALE_BYTES] = scale.view(torch.int8).view(-1, SCALE_BYTES)
    ends = [*accumulate(map(len, sent))]
    for sent_NL, end in zip(sent, ends, strict=True):
        sent_NL.view(torch.int8)[:, -TAIL:] = tail[end - len(sent_NL) : end]


def coded(weights: Sequence[NamedTensor], scheme: Scheme) -> list[NamedTensor]:
    """Quantize whole weights on one device; return the tensors to send, with their names."""
    sent = [torch.empty(sent_shape(w.shape), dtype=codes_dtype(scheme), device=w.device) for _, w in weights]
    encode([w for _, w in weights], sent, scheme)
    return [(sent_name(name, scheme), tensor) for (name, _), tensor in zip(weights, sent, strict=True)]


def prepare(rows: Iterable[tuple[int, torch.dtype]], scheme: Scheme, device: torch.device) -> None:
    """Compile the kernels that `encode` needs for rows of these lengths and dtypes, by encoding one of each."""
    coded([(f"{dtype} {K}", torch.zeros(1, K, dtype=dtype, device=device)) for K, dtype in set(rows)], scheme)
