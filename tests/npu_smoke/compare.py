"""What differs between a result and the expected one, in elements and in units in the last place."""

from typing import Any

import torch

from ascend_quant import oracle
from npu_smoke.checks import IN_SHORT, Wrong, require


def difference(found: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    """How many elements have other bits (a NaN is a NaN), and how far the worst finite one is off.

    Raises:
        Wrong: they have different shapes or dtypes.
    """
    found, expected = found.cpu(), expected.cpu()
    if found.shape != expected.shape or found.dtype != expected.dtype:
        what, wanted = (f"{tensor.dtype} {list(tensor.shape)}" for tensor in (found, expected))
        raise Wrong(f"got {what}, expected {wanted}")
    if not found.dtype.is_floating_point:
        apart = (found.to(torch.int64) - expected.to(torch.int64)).abs()
        return {
            "differ": int((apart != 0).sum()),
            "of": found.numel(),
            "largest": int(apart.max()) if len(apart) else 0,
        }
    bits, wanted_bits = (oracle.as_integers(oracle.as_matrix(tensor)).flatten() for tensor in (found, expected))
    either_nan, both_nan = found.isnan() | expected.isnan(), found.isnan() & expected.isnan()
    finite = (found.isfinite() & expected.isfinite()).flatten()
    apart = (_ordered(bits) - _ordered(wanted_bits)).abs()[finite]
    return {
        "differ": int(((bits != wanted_bits) & ~both_nan.flatten()).sum()),
        "of": found.numel(),
        "by_one_ulp": int((apart == 1).sum()),
        "worst_ulps": int(apart.max()) if len(apart) else 0,
        "nan_or_inf_differ": int((found.isfinite() != expected.isfinite()).sum() + (either_nan & ~both_nan).sum()),
    }


def note(found: torch.Tensor, expected: torch.Tensor, numbers: dict[str, Any], name: str) -> None:
    """Keep the difference under the name."""
    numbers[name] = difference(found, expected)


def require_all_equal(numbers: dict[str, Any]) -> None:
    """Raise Wrong if any difference that was noted is one."""
    noted = {name: apart for name, apart in numbers.items() if isinstance(apart, dict) and "differ" in apart}
    texts = [f"{name}: {_in_words(apart)}" for name, apart in noted.items() if apart["differ"]]
    if texts:
        numbers[IN_SHORT] = texts[0]
    require(not texts, "; ".join(texts))


def require_equal(found: torch.Tensor, expected: torch.Tensor, numbers: dict[str, Any], name: str) -> None:
    """Note the difference; raise Wrong if there is one."""
    note(found, expected, numbers, name)
    require_all_equal({name: numbers[name]})


def _in_words(apart: dict[str, Any]) -> str:
    worst = f"{apart['worst_ulps']} units in the last place" if "worst_ulps" in apart else str(apart["largest"])
    return f"{apart['differ']} of {apart['of']} differ, by {worst} at most"


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """A float's bits as an integer that counts the floats from zero."""
    largest = torch.iinfo(bits.dtype).max
    bits = bits.to(torch.int64)
    return torch.where(bits < 0, -(bits & largest), bits)
