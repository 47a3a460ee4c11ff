"""`ascend-quant smoke` on an NPU of the host's memory: every probe passes, and a planted fault is named by its probes.

No graphs can be captured there: a recording of a call's operators stands in for one, carried out again in a replay.
"""

import contextlib

import pytest
import torch
import torch_npu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ascend_quant.kernels import npu, reciprocals
from ascend_quant.kernels.npu import ops as npu_ops
from ascend_quant.kernels.npu.refit import codes as npu_codes
from ascend_quant.kernels.npu.refit import formats as npu_formats
from ascend_quant.refit.resident import QuantizedWeight
from ascend_quant.smoke import generation, probes
from ascend_quant.smoke.probes import On
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result
from npu_host import vllm_engine

pytestmark = pytest.mark.long("ascend_quant/smoke", "ascend_quant/kernels", "ascend_quant/refit", "tests/npu_host")
ON = On(torch.device("npu:0"), small=True)
NEEDS_ACL = {"engine.refit", "engine.graphs", "engine.sleep"}
NEEDS_ACL |= {"speed.refit_calls", "speed.bf16", "speed.int8", "speed.w8a8"}
NEEDS_DEVICES = {"engine.ranks", "engine.experts", "speed.bf16_4", "speed.int8_4"}


def tried(*wanted: str) -> dict[str, Result]:
    return {one.name: probes.carry_out(one, ON) for one in probes.probes_for("npu", wanted)}


def failed(*wanted: str) -> dict[str, str]:
    """The reasons of those that failed."""
    return {name: one.reason for name, one in tried(*wanted).items() if one.status == FAILED}


class Recorded(TorchDispatchMode):
    """Stands in for a captured graph: the operators of a block, carried out again into the same tensors."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_flatten(result)[0], tree_flatten(again)[0], strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.fixture
def graphs(monkeypatch):
    @contextlib.contextmanager
    def graph(one):
        with one:
            yield

    monkeypatch.setattr(torch.npu, "NPUGraph", Recorded)
    monkeypatch.setattr(torch.npu, "graph", graph)


def test_every_probe_passes_or_says_what_is_missing_here():
    found = tried()
    missing = dict.fromkeys(NEEDS_ACL, "acl") | dict.fromkeys(NEEDS_DEVICES, "1 are there") | {"ipc": "verl"}
    assert {name for name, one in found.items() if one.status == NOT_APPLICABLE} == missing.keys()
    assert all(named in found[name].reason for name, named in missing.items())
    assert all(one.status == OK for name, one in found.items() if name not in missing), failed_of(found)
    assert found["versions"].values["device"] == "Ascend910B1"
    assert found["operators.rounding"].values["codes by"] == "codes_fused"
    assert found["speed.refit"].values["copy, GB/s read and written"] > 0


def failed_of(found: dict[str, Result]) -> dict[str, str]:
    return {name: one.reason for name, one in found.items() if one.status == FAILED}


def test_captured_graphs_follow_refits_and_scales_of_a_cache(graphs):
    found = tried("operators.refits", "operators.c8")
    assert all(one.status == OK and "no graphs" not in one.values for one in found.values()), failed_of(found)


def test_a_graph_that_reads_old_weights(graphs, monkeypatch):
    monkeypatch.setattr(Recorded, "replay", lambda self: None)
    found = failed("operators.refits", "operators.c8")
    assert set(found) == {"operators.refits", "operators.c8"} and "replay 1" in found["operators.refits"]


def rounded_away_from_zero(monkeypatch):
    def away(x_NK, factor_N):
        products = x_NK.float() * factor_N[:, None]
        return (products + 0.5 * products.sign()).trunc().to(torch.int8)

    way = npu_codes.way_of(ON.device)._replace(codes=away)
    monkeypatch.setattr(npu_codes, "way_of", lambda device: way)


def scale_an_ulp_more(monkeypatch):
    right = reciprocals.scale_and_factor

    def more(absmax_N):
        scale, factor = right(absmax_N)
        return (scale.view(torch.int32) + (scale > 0)).view(torch.float32), factor

    monkeypatch.setattr(reciprocals, "scale_and_factor", more)


def a_bit_turned_in_panels(monkeypatch):
    right = npu_formats.Panels.write
    monkeypatch.setattr(npu_formats.Panels, "write", lambda self, first, codes: right(self, first, codes ^ 1))


def nan_unseen(monkeypatch):
    monkeypatch.setattr(npu.Counters, "_spoilt_rows", lambda self, spoilt: {})


def activations_cut_off(monkeypatch):
    right = torch_npu.npu_dynamic_quant
    monkeypatch.setattr(torch_npu, "npu_dynamic_quant", lambda x: (right(x)[0] & -2, right(x)[1]))


def product_off_by_one(monkeypatch):
    right = torch_npu.npu_quant_matmul

    def off(*args, **kwargs):
        y = right(*args, **kwargs)
        return y if y.dtype == torch.int32 else y * 1.02

    monkeypatch.setattr(torch_npu, "npu_quant_matmul", off)


def grouped_rows_of_another_expert(monkeypatch):
    right = torch_npu.npu_grouped_matmul

    def swapped(x, weight, **kwargs):
        return right(x, [weight[0].flip(0)], **kwargs)

    monkeypatch.setattr(torch_npu, "npu_grouped_matmul", swapped)


def stale_copies_of_scales(monkeypatch):
    monkeypatch.setattr(QuantizedWeight, "refresh", lambda self: None)


FAULTS = {
    rounded_away_from_zero: {"operators.rounding", "operators.codes"},
    scale_an_ulp_more: {"operators.rounding", "operators.codes"},
    a_bit_turned_in_panels: {"operators.codes", "operators.products", "operators.experts"},
    nan_unseen: {"operators.not_finite"},
    activations_cut_off: {"operators.products", "operators.experts"},
    product_off_by_one: {"operators.products"},
    grouped_rows_of_another_expert: {"operators.experts"},
    stale_copies_of_scales: {"operators.refits"},
}
BYSTANDERS = {"operators.not_finite"}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named_by_its_probes(plant, monkeypatch):
    plant(monkeypatch)
    found = failed(*FAULTS[plant] | BYSTANDERS)
    assert set(found) == FAULTS[plant], found


def test_an_operator_that_is_missing_or_raises(monkeypatch):
    def raises(*args, **kwargs):
        raise RuntimeError("/usr/local/Ascend/opp/libopapi.so: aicore error 507015")

    monkeypatch.setattr(torch_npu, "npu_grouped_matmul", raises)
    right = npu_ops.has_operator
    monkeypatch.setattr(npu_ops, "has_operator", lambda name: name != "npu_quant_matmul" and right(name))
    found = tried("operators.experts", "operators.products")
    assert {one.status for one in found.values()} == {FAILED}
    assert found["operators.experts"].reason == "RuntimeError: libopapi.so: aicore error 507015"
    assert "npu_quant_matmul" in found["operators.products"].reason


def test_vllm_ascend_quantizes_what_the_description_of_random_weights_says(tmp_path):
    from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM

    generation._write(tmp_path, generation.CONFIG | generation.FEW)
    config, mapping = vllm_engine.modelslim_config()(), Qwen2ForCausalLM.packed_modules_mapping
    config.maybe_update_config(str(tmp_path))
    layers = [f"model.layers.0.{name}" for name in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj")]
    assert not any(config.is_layer_skipped_ascend(name, mapping) for name in (*layers, "model.layers.0.mlp.down_proj"))
    assert config.is_layer_skipped_ascend("lm_head", mapping)
