"""Whole models, built by the installed vllm-ascend from our config: loads are refits, bit by bit the oracle's."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch_npu
from torch import nn

from ascend_quant.integrations import vllm as plugin
from ascend_quant.refit import RefitError
from ascend_quant.schemes import SCHEMES
from ascend_quant.transfer.prequantized import coded
from npu_host import checkpoint


@contextlib.contextmanager
def built(running: Callable, folder: Path, architecture: str, nz: bool = True, **more) -> Iterator[tuple]:
    """Whether it has experts, the model, vLLM's configuration.

    Args:
        running: of the engine module for the installed version.
        nz: whether linear layers are kept in FRACTAL_NZ.
        more: of `running`.
    """
    plugin.register()
    from vllm.model_executor.model_loader import base_loader

    from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig

    with running(folder, architecture, **more) as config:
        config.quant_config = NpuQuantConfig(nz=nz)
        model = base_loader.initialize_model(vllm_config=config, model_config=config.model_config)
        yield "Moe" in architecture, model, config


def tensors_of(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Addresses and formats of parameters and of the scales that are plain attributes."""
    found = dict(model.named_parameters())
    for name, module in model.named_modules():
        found |= {f"{name}.{key}": value for key, value in vars(module).items() if key.endswith("_fp32")}
    return {name: (tensor.data_ptr(), torch_npu.get_npu_format(tensor.data)) for name, tensor in found.items()}


def load(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """In buckets, in another order than the model's."""
    pairs = [(name, tensor.npu()) for name, tensor in state.items()]
    with plugin.refit_of(model).session():
        for part in (pairs[10:], pairs[:4], pairs[4:10]):
            model.load_weights(part)


def codes_of_the_trainers_own_are_the_oracles(moe: bool, model: nn.Module) -> None:
    """Quantized on npu:0 as a trainer does; by the loaders, then by plan."""
    refit = plugin.refit_of(model)
    load(model, checkpoint.state_of(moe, 8))
    names, others = refit.plan.takes_codes()
    assert all(name.endswith("_proj.weight") for name in names) and "model.norm.weight" in others
    for seed in (9, 10):
        state = checkpoint.state_of(moe, seed)
        quantized = [(name, state[name].npu()) for name in names]
        sent = {name: tensor for name, tensor in state.items() if name not in names}
        load(model, sent | dict(coded(quantized, SCHEMES["int8"])))
        held = checkpoint.held(moe, model)
        for name, pair in checkpoint.expected(moe, state).items():
            assert all(map(torch.equal, held[name], pair)), name
        assert refit.last_receipt.digest == refit.digest() and refit.last_receipt.tensors == len(state)


def stacks_of_experts_are_the_oracles(moe: bool, model: nn.Module) -> None:
    """As a trainer with transformers 5 sends them, in BF16 and as codes: through the loaders, then by plan."""
    refit = plugin.refit_of(model)
    for seed in (20, 21, 22):
        state = checkpoint.state_of(moe, seed)
        sent = checkpoint.stacked(moe, state)
        assert (len(sent) < len(state)) == moe
        if seed > 20:
            names, _ = refit.plan.takes_codes()
            quantized = [(name, sent.pop(name).npu()) for name in names]
            assert any(tensor.dim() == 3 for _, tensor in quantized) == moe
            sent |= dict(coded(quantized, SCHEMES["int8"]))
        load(model, sent)
        held = checkpoint.held(moe, model)
        for name, pair in checkpoint.expected(moe, state).items():
            assert all(map(torch.equal, held[name], pair)), name
        assert refit.last_receipt.digest == refit.digest() and refit.last_receipt.tensors == len(sent)


def three_refits_are_the_oracles(moe: bool, model: nn.Module) -> None:
    """Codes, scales, a plain parameter, addresses, formats and the receipt."""
    refit, before = plugin.refit_of(model), tensors_of(model)
    for seed in range(3):
        state = checkpoint.state_of(moe, seed)
        load(model, state)
        for module in model.modules():  # as vLLM does after loading, and verl after every sync
            if hasattr(getattr(module, "quant_method", None), "process_weights_after_loading"):
                module.quant_method.process_weights_after_loading(module)
        held = checkpoint.held(moe, model)
        for name, pair in checkpoint.expected(moe, state).items():
            assert all(map(torch.equal, held[name], pair)), name
        plain = dict(model.named_parameters())["model.norm.weight"].data.cpu()
        assert torch.equal(plain, state["model.norm.weight"])
        assert tensors_of(model) == before and refit.last_receipt.digest == refit.digest()
        assert refit.last_receipt.tensors == len(state)


def a_bad_tensor_is_named_and_the_next_refit_heals(moe: bool, model: nn.Module) -> None:
    """A NaN in the last expert's, or the one, up projection."""
    refit, state = plugin.refit_of(model), checkpoint.state_of(moe, 7)
    name = f"{checkpoint.mlps(moe)[-1]}.up_proj.weight"
    broken = {**state, name: state[name].clone().fill_(float("nan"))}
    with pytest.raises(RefitError, match=rf"{name}.*NaN"):
        model.load_weights([(key, tensor.npu()) for key, tensor in broken.items()])
    assert refit.why_not_servable()
    model.load_weights([(key, tensor.npu()) for key, tensor in state.items()])
    assert refit.why_not_servable() is None and refit.digest() == refit.last_receipt.digest


def save_share(running: Callable, rank: int, ranks: int, way: str, architecture: str, folder: Path) -> None:
    """As one rank: refit twice, save (codes, scales) by name, whether nothing moved and both digests."""
    share = {"rank": rank, "ranks": ranks, "expert_parallel": way == "ep"}
    with built(running, folder, architecture, **share) as (moe, model, _):
        before = tensors_of(model)
        for seed in range(2):  # through the loaders, then by plan
            load(model, checkpoint.state_of(moe, seed))
        refit = plugin.refit_of(model)
        digests = (refit.last_receipt.digest, refit.digest())
        found = {"held": checkpoint.held(moe, model), "stayed": tensors_of(model) == before, "digests": digests}
        torch.save(found, folder / f"{rank}.pt")
