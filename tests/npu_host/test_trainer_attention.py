"""The trainer's attention on an Ascend stack: verl's default, which no recipe for NPUs changes.

verl hands the settings to transformers, whose flash_attention_2 calls torch_npu's npu_fusion_attention on NPUs. Its
arguments are here those of the real operator, and the arithmetic is PyTorch's.
"""

import copy
from itertools import pairwise

import pytest
import torch
from transformers.integrations import npu_flash_attention

from ascend_quant.demo.task import TINY_ON_NPUS, build_model
from ascend_quant.integrations.verl.training.attention_settings import FLASH
from npu_host import reference

SERVED_HEADS = (64, 128, 192)  # of packed sequences, by CANN's inference operator, which then serves the same model
LENGTHS = (5, 3)
TOKENS = torch.arange(3, 3 + sum(LENGTHS))


def fused(*args, **kwargs):
    """npu_fusion_attention of packed sequences, causal; the result alone is what transformers takes of its tuple."""
    a = reference.bind(torch.ops.npu.npu_fusion_attention.default._schema, args, kwargs)
    assert (a.input_layout, a.sparse_mode, a.keep_prob) == ("TND", 3, 1.0)
    assert a.head_num == a.query.shape[1] and a.query.shape[2] in SERVED_HEADS
    q, k, v = (one.cpu().transpose(0, 1) for one in (a.query, a.key, a.value))
    ends = (0, *a.actual_seq_qlen)
    assert ends == (0, *a.actual_seq_kvlen) and tuple(end - begin for begin, end in pairwise(ends)) == LENGTHS
    rows = [
        torch.nn.functional.scaled_dot_product_attention(
            q[:, begin:end], k[:, begin:end], v[:, begin:end], is_causal=True, scale=a.scale, enable_gqa=True
        )
        for begin, end in pairwise(ends)
    ]
    return (torch.cat(rows, 1).transpose(0, 1).to(a.query.device),)


def test_smokes_recipe_trains_with_torch_npus_attention(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(npu_flash_attention, "npu_fusion_attention", fused)
    start = build_model("qwen2", seed=0, shape=TINY_ON_NPUS).eval()
    model = copy.deepcopy(start).to("npu:0")
    model.set_attn_implementation(FLASH)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    with torch.no_grad():
        alone = [start(one.unsqueeze(0)).logits[0] for one in TOKENS.split(LENGTHS)]
        packed = model(TOKENS.unsqueeze(0).npu(), position_ids=positions.unsqueeze(0).npu()).logits[0]
    torch.testing.assert_close(packed.cpu(), torch.cat(alone))
