"""npu-smoke's checks of the int8 KV cache (C8): yes with our tensors in place, no where a place is another one."""

from types import SimpleNamespace

import pytest
import torch
from naming import has_line_naming, line_naming

from ascend_quant.integrations import vllm as plugin
from ascend_quant.refit import RefitError
from npu_host import c8_models, smoke_runs
from npu_host.smoke_runs import by_name, run

with_graphs = pytest.fixture(smoke_runs.with_graphs)


def test_a_graph_reads_scales_that_are_written_in_place(tmp_path, with_graphs):
    code, content = run(tmp_path / "result.json", "kv_cache.graphs", "kv_cache.heads")
    found = by_name(content)
    assert code == 0 and found["kv_cache.graphs"]["verdict"] == "proved", found
    assert found["kv_cache.heads"]["answer"] == "yes" and found["kv_cache.heads"]["numbers"]["in short"] == (
        "4 of 4 pairs of heads"
    )


def test_scales_that_are_put_elsewhere_are_seen(tmp_path, with_graphs, monkeypatch):
    plugin.register()
    from ascend_quant.integrations.vllm_ascend import c8

    def elsewhere(self, by_layer):
        for name, values in by_layer.items():
            for places, kept in zip(c8._places(self.modules[name]), self.kept(values), strict=True):
                for place, part in zip(places, kept.chunk(len(places)), strict=True):
                    place.data = part.view(place.shape).to(place.dtype).npu()

    monkeypatch.setattr(c8.C8Buffers, "write", elsewhere)
    _, content = run(tmp_path / "result.json", "kv_cache.graphs")
    one = by_name(content)["kv_cache.graphs"]
    assert one["verdict"] == "refuted" and has_line_naming(one["reason"], "replay")


def test_the_engine_of_npu_smoke_is_sent_what_a_trainer_sends():
    from npu_smoke import kv_life

    from ascend_quant.refit.kv_scales import AGE, NAME

    sent, without = kv_life.sent(1), kv_life.sent(1, scales=False)
    scales = [name for name in sent if NAME.search(name)]
    assert set(sent) - set(without) == {*scales, AGE} and len(scales) == 2 * kv_life.SIZES["num_hidden_layers"]
    channels = kv_life.SIZES["num_key_value_heads"] * kv_life.SIZES["head_dim"]
    assert all(sent[name].shape == (channels,) and sent[name].min() > 0 for name in scales)


def test_the_engine_of_npu_smoke_tells_whose_scales_it_holds(tmp_path):
    """Its worker's methods, on a model of the host's memory."""
    from npu_smoke import kv_life

    class Worker(kv_life.Extension):
        device = torch.device("npu:0")

    worker = Worker()
    with c8_models.built(tmp_path, **kv_life.SIZES) as (model, _):
        worker.model_runner = SimpleNamespace(model=model)
        worker.c8_sync(1)
        assert worker.c8_held(1) and not worker.c8_held(2)
        with pytest.raises(RefitError, match=line_naming("layers.0.self_attn")):
            worker.c8_sync(2, False)
        worker.c8_sync(2)
        assert worker.c8_held(2)
