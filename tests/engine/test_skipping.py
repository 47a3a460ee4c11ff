"""What vLLM's own loaders leave out is heard from them, by each way that they have; what they do not stays an error."""

from inspect import signature
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from vllm.model_executor.models import deepseek_v2, utils
from vllm.model_executor.models.glm4_moe import skip_spec_layers
from vllm.model_executor.models.utils import AutoWeightsLoader, StageMissingLayer, WeightsMapper

from ascend_quant.engine.loading import Loading, storage_of
from ascend_quant.engine.unmatched import UnmatchedWeights
from ascend_quant.integrations.vllm import skipping
from ascend_quant.integrations.vllm.hooks import WITH_FIRST_MODEL
from ascend_quant.integrations.wrapping import install
from ascend_quant.refit import Refit, RefitError
from ascend_quant.refit.resident import ResidentWeight


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)


class Model(nn.Module):
    """A norm, a tower that was not built, a loader with rules of each kind, and a loop that swallows what it likes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4, bias=False)
        self.visual = StageMissingLayer("vision_tower", Tower())
        self.config = SimpleNamespace(num_hidden_layers=1, num_nextn_predict_layers=1)

    def load_weights(self, weights):
        swallowed = (pair for pair in weights if not pair[0].startswith("swallowed"))
        has_rule = "skip_prefixes" in signature(AutoWeightsLoader).parameters  # newer ones map such names to nothing
        rules = {"skip_prefixes": ["mtp."]} if has_rule else {}
        loader = AutoWeightsLoader(self, ignore_unexpected_prefixes=["logit_scale"], **rules)
        mapper = WeightsMapper(
            orig_to_new_prefix={"talker.": None, "model.": "", **({} if has_rule else {"mtp.": None})}
        )
        return loader.load_weights(skip_spec_layers(swallowed, self.config), mapper=mapper)


NORM = "model.norm.weight"
SKIPPED = {
    "a prefix": ["mtp.fc.weight", "mtp.layers.0.norm.weight"],
    "unexpected": ["logit_scale.a", "logit_scale.b"],
    "a name that is mapped to nothing": ["talker.weight", "talker.bias"],
    "a layer for speculation": ["model.layers.1.eh_proj.weight", "model.layers.1.mlp.experts.3.up_proj.weight"],
    "an old checkpoint's buffer": ["model.rotary_emb.inv_freq"],
    "a tower that is not built": ["visual.fc.weight", "visual.fc.bias"],
}
REFUSED = ["swallowed.weight", "model.layers.2.eh_proj.weight", "mtpx.weight", "norm.bias", "visua.fc.weight"]


@pytest.fixture
def load():
    install(WITH_FIRST_MODEL)
    model = Model()
    resident = ResidentWeight("norm.weight", model.norm.weight.data)
    refit = Refit([resident])

    def load(names):
        """A refit of the norm, with other tensors around it; returns the receipt."""
        sent = [(name, torch.ones(4)) for name in (*names[:1], NORM, *names[1:])]
        with refit.session(), torch.no_grad():
            loading = Loading(refit, {storage_of(resident.data): resident}, 1, UnmatchedWeights(None, 0), False)
            rest = loading.feed(sent)
            if (first := next(rest, None)) is not None:
                with loading, loading.naming(), skipping.listening(loading):
                    model.load_weights(pair for pairs in ([first], rest) for pair in pairs)
                loading.finish()
        return refit.last_receipt

    return load


@pytest.mark.parametrize(("name", "own"), [("norm.weight", True), ("other.weight", False)])
def test_a_loader_that_gathers_first_is_told_from_an_extra_tensor(name, own):
    """Before its first write it has asked for the next tensor."""
    resident = ResidentWeight("norm.weight", Model().norm.weight.data)
    refit = Refit([resident])
    loading = Loading(refit, {storage_of(resident.data): resident}, 1, UnmatchedWeights(None, 0), False)
    with pytest.raises(RefitError) as refused, refit.session(), loading, loading.naming():
        list(loading.feed([(name, torch.ones(4)), ("next.weight", torch.ones(4))]))
    assert str(refused.value).startswith(name) is own and name in str(refused.value)


@pytest.mark.parametrize("why", SKIPPED)
def test_what_vllm_skips_is_left_out_and_named(load, why):
    for _ in range(2):  # through the loaders, by plan
        receipt = load(SKIPPED[why])
        assert (receipt.left_out.names, receipt.tensors) == (tuple(sorted(SKIPPED[why])), 1)
    assert (load([]).left_out.names, load([]).tensors) == ((), 1)


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_is_an_error(load, name):
    with pytest.raises(RefitError, match=name.split(".")[-2]):
        load([name])
    with pytest.raises(RefitError, match=name.split(".")[-2]):
        load(["mtp.fc.weight", name, "mtp.norm.weight"])


def test_outside_a_refit_vllm_is_as_it_was(load):
    load(["mtp.fc.weight"])
    assert deepseek_v2.get_spec_layer_idx_from_weight_name is utils.get_spec_layer_idx_from_weight_name
    assert utils.get_spec_layer_idx_from_weight_name(Model().config, "model.layers.1.a") == 1
    assert utils.get_spec_layer_idx_from_weight_name(Model().config, "model.layers.0.a") is None
    assert WeightsMapper(orig_to_new_prefix={"a.": None})._map_name("a.b") is None
    assert not AutoWeightsLoader(Model())._can_skip("a.b")
