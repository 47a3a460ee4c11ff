"""Sampling from logits with given noise in one pass over (M, V); vLLM needs five.

vLLM divides softmax(logits / temperature) by exponential noise and takes the argmax, which is also the argmax of logit
/ temperature - log(noise). With the same noise both give the same token, unless two are equal up to rounding (a few in
a million).
"""

import torch
import triton
import triton.language as tl

PART = 8192  # columns per program
BLOCK = 1024  # columns that a program processes at once
WARPS = 4


@triton.jit
def best_of_part(logits, temperature, noise, best, token, stride, V, PART: tl.constexpr, BLOCK: tl.constexpr):
    """Find the largest logit / temperature - log(noise) of a part of a row, and its index."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    top, where = tl.full((BLOCK,), float("-inf"), tl.float32), part * PART + lane
    divisor = tl.full((BLOCK,), 0.0, tl.float32) + tl.load(temperature + row)
    for first in tl.range(part * PART, tl.minimum(part * PART + PART, V), BLOCK):
        column = first + lane
        logit = tl.load(logits + row * stride + column, mask=column < V, other=float("-inf"))
        score = tl.div_rn(logit, divisor) - tl.log(tl.load(noise + row * V + column, mask=column < V, other=1.0))
        better = score > top
        top, where = tl.where(better, score, top), tl.where(better, column, where)
    largest = tl.max(top, 0)
    first_place = tl.min(tl.where(top == largest, where, V - 1), 0)
    tl.store(best + row * tl.num_programs(1) + part, largest)
    tl.store(token + row * tl.num_programs(1) + part, first_place)


def drawn(logits_MV: torch.Tensor, temperature_M: torch.Tensor, noise_MV: torch.Tensor) -> torch.Tensor:
    """Return int64 (M): the argmax of softmax(logits / temperature) / noise.

    Args:
        logits_MV: float32, with adjacent columns; -inf for tokens that must not be drawn.
        temperature_M: float32, above 0.
        noise_MV: float32, contiguous, from an exponential distribution.
    """
    rows, columns = logits_MV.shape
    parts = triton.cdiv(columns, PART)
    best_MP = torch.empty(rows, parts, dtype=torch.float32, device=logits_MV.device)
    token_MP = torch.empty(rows, parts, dtype=torch.int64, device=logits_MV.device)
    if rows:
        with torch.cuda.device_of(logits_MV):
            best_of_part[(rows, parts)](
                logits_MV, temperature_M, noise_MV, best_MP, token_MP, logits_MV.stride(0), columns, PART, BLOCK,
                num_warps=WARPS,
            )  # fmt: skip
    return token_MP.gather(1, best_MP.argmax(1, keepdim=True)).squeeze(1)
