"""What a sender is told of tensors that an engine's loaders refuse, or put where no refit writes."""

import pytest
import torch
from naming import line_naming

from ascend_quant.engine.loading import Loading, storage_of
from ascend_quant.engine.misnamed import misnamed
from ascend_quant.engine.unmatched import UnmatchedWeights
from ascend_quant.refit import Refit, RefitError
from ascend_quant.refit.resident import ResidentWeight

KNOWN = [f"model.layers.{i}.self_attn.q_proj.weight" for i in range(400)] + ["model.norm.weight", "lm_head.weight"]
Q = KNOWN[0]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (f"module.{Q}", "removeprefix('module.')"),
        (f"_orig_mod.{Q}", "removeprefix('_orig_mod.')"),
        ("_orig_mod.module.lm_head.weight", "removeprefix('_orig_mod.module.')"),
        (Q.replace("self_attn.", "self_attn._fsdp_wrapped_module."), "replace('_fsdp_wrapped_module.', '')"),
        (Q.removeprefix("model."), "'model.' + name"),
        ("norm.weight", "'model.' + name"),
        (f"base_model.model.{Q}", "base_model.model. … merge_and_unload"),
        (f"base_model.model.{Q.replace('.weight', '.base_layer.weight')}", "base_model. … merge_and_unload"),
        (Q.replace(".weight", ".lora_A.default.weight"), "lora_A. … merge_and_unload"),
    ],
)
def test_a_name_that_a_wrapper_has_changed_is_told_apart(sent, told):
    with pytest.raises(RefitError, match=line_naming(told)):
        raise RefitError(misnamed(sent, KNOWN))


@pytest.mark.parametrize("sent", ["v_head.summary.weight", "weight", "", "model.layers.0.self_attn.z_proj.weight"])
def test_other_names_say_nothing_of_wrappers(sent):
    assert misnamed(sent, KNOWN) is None


class Model:
    """A norm and a buffer, which a loader knows by name; it lists what it knows where it does not, as vLLM's does."""

    def __init__(self):
        self.norm = ResidentWeight("model.norm.weight", torch.zeros(4, dtype=torch.bfloat16))
        self.bias = torch.zeros(4)
        self.refit = Refit([self.norm])

    def load(self, *weights):
        loading = Loading(self.refit, {storage_of(self.norm.data): self.norm}, 1, UnmatchedWeights(None, 0), True)
        places = {"model.norm.weight": self.norm.data, "model.bias": self.bias}
        with self.refit.session(), loading, loading.naming():
            for name, tensor in loading.feed(weights):
                if name not in places:
                    raise ValueError(f"There is no parameter named {name}. The available ones are {KNOWN}")
                assert places[name].shape == tensor.shape
                places[name].copy_(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_loader_puts_into_a_buffer_is_named_as_one(dtype):
    with pytest.raises(RefitError, match=line_naming("model.bias", "buffer", "torch.float32", "(4,)")):
        Model().load(("model.norm.weight", torch.ones(4)), ("model.bias", torch.ones(4, dtype=dtype)))


def test_a_tensor_of_another_shape_than_before_is_told_both():
    model = Model()
    for known in (False, True):
        both = ["(6,)", "(4,)"] if known else ["(6,)"]
        with pytest.raises(RefitError, match=line_naming("model.norm.weight", *both)):
            model.load(("model.norm.weight", torch.ones(6)))
        model.load(("model.norm.weight", torch.ones(4)))


@pytest.mark.parametrize("name", ["module.model.norm.weight", "unknown.weight"])
def test_a_loaders_list_of_all_names_is_cut(name):
    with pytest.raises(RefitError, match=line_naming(name)) as caught:
        Model().load((name, torch.ones(4)))
    assert len(str(caught.value)) <= 300
