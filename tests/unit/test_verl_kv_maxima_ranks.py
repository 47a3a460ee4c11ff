"""Scales of a KV cache on two gloo ranks of verl's FSDP2 engine, with and without Ulysses: all ranks' maxima."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gloo_ranks import join, leave
from kv_cases import largest
from packed_engine import build, gradients, plain_model, texts

pytest.importorskip("verl", reason="the engine is verl's")

RANKS = 2


def check_rank(rank: int, folder) -> None:
    join(rank, RANKS, folder)
    import verl  # noqa: F401  the plugin brings the cpu platform

    from ascend_quant.integrations.verl.sending import hooks
    from ascend_quant.integrations.verl.sending.kv_amax import AmaxObserver
    from ascend_quant.integrations.verl.training.attention_settings import PACKED
    from ascend_quant.integrations.wrapping import install
    from ascend_quant.kv_cache.scales import AGE, FP8, INT8, sent_name

    install(hooks.WITH_KV_SCALES)
    for form in (FP8, INT8):
        seen = largest(plain_model(), [ids.unsqueeze(0) for ids in texts()], form.by_channel)
        wanted = {
            sent_name(name, kind): pytest.approx([value * form.margin / form.largest for value in values], rel=1e-5)
            for name, of_qkv in seen.items()
            for kind, values in zip("qkv", of_qkv, strict=True)
            if kind in form.kinds
        }
        for ulysses in (1, RANKS):
            engine, maxima = build(folder, PACKED, ulysses), AmaxObserver(form)
            with maxima.observe_update():
                gradients(engine)
            alone = [found.clone() for found in maxima._of.values()]
            sent = {name: tensor.tolist() for name, tensor in maxima.as_sent(engine.module, torch.device("cpu"))}
            assert sent.pop(AGE) == [0] and list(sent) == list(wanted)
            assert sent == wanted, ulysses
            others = [torch.empty_like(torch.stack(alone)) for _ in range(RANKS)]
            dist.all_gather(others, torch.stack(alone))
            assert not torch.equal(*others), "the ranks have seen other samples"
        if rank == 0:  # a rank that has seen nothing does not keep the others waiting
            maxima._of.clear()
        assert len(maxima.as_sent(engine.module, torch.device("cpu"))) == len(wanted) + 1
    leave()


def test_the_maxima_of_all_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    plain_model().save_pretrained(tmp_path / "model")
    mp.spawn(check_rank, (tmp_path,), nprocs=RANKS)
