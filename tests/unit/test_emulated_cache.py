"""The int8 cache that is emulated for vLLM on CPUs: what its attention gets, beside NumPy's own arithmetic."""

import numpy as np
import torch

from benchmarks.emulated_cache import round_in

HEADS, HEAD, HEAD_V, TOKENS = 3, 16, 8, 5


class Attention:
    """As vLLM's: it hands back what it was given."""

    head_size, head_size_v = HEAD, HEAD_V

    def forward(self, query, key, value, output_shape=None):
        return query, key, value, output_shape


def as_int8(x: torch.Tensor, head: int) -> np.ndarray:
    rows = x.float().numpy().reshape(-1, head)
    scale = np.abs(rows).max(1, keepdims=True) / np.float32(127)
    return (np.rint(rows / scale) * scale).reshape(x.shape)


def test_keys_and_values_are_those_of_codes_and_scales_of_each_token_and_head():
    given = torch.Generator().manual_seed(0)
    query, key = (torch.randn(TOKENS, HEADS * HEAD, generator=given).bfloat16() for _ in range(2))
    value = torch.randn(TOKENS, HEADS, HEAD_V, generator=given).bfloat16()
    key[2] *= 1000  # a token's own scale: the others keep theirs

    class Rounded(Attention):
        pass

    round_in(Rounded)
    got = Rounded().forward(query, key, value, output_shape="as it was")
    assert got[0] is query and got[3] == "as it was"
    for x, kept, head in ((key, got[1], HEAD), (value, got[2], HEAD_V)):
        assert kept.dtype == x.dtype and kept.shape == x.shape and not kept.equal(x)
        torch.testing.assert_close(kept, torch.from_numpy(as_int8(x, head)).bfloat16(), rtol=0, atol=0)
    assert Attention().forward(query, key, value)[1] is key
