"""An update's weights stay on the device till a sync has them, and leave as they are by then: verl's own engine."""

from contextlib import nullcontext

import pytest

pytest.importorskip("verl", reason="the engine is verl's")
pytest.importorskip("vllm", reason="verl's workers need vLLM")

import torch
import torch.multiprocessing as mp
from gloo_ranks import join, leave

from ascend_quant.schemes import SCHEMES
from ascend_quant.transfer.checksums import Receiving
from ascend_quant.transfer.prequantized import coded

RANKS = 1  # shares of more are gathered in test_verl_gathering.py
INT8 = SCHEMES["int8"]
CODED = "model.layers.0.mlp.up_proj.weight"


def sender_of(folder, keeps: bool = True):
    """Sends the weights of verl's engine, which wait on the host; with it what verl moved there of it."""
    from packed_engine import build

    from ascend_quant.integrations.verl.sending.options import SendOptions
    from ascend_quant.integrations.verl.sending.weight_sender import WeightSender
    from ascend_quant.integrations.verl.training import packed_attention

    engine, moved = build(folder, packed_attention.PACKED, 1, offload=True), []
    own = WeightSender(engine, SendOptions(rounds=True, keeps_weights=keeps, bucket=1 << 30))
    move = own.engine.to

    def to(device: str, **what: bool) -> None:
        moved.append(sorted(name for name, moves in what.items() if moves))
        move(device, **what)

    own.engine.to = own.offloaded.before(to)
    return own, moved


def update(own, by: float, mode: str = "train") -> None:
    """Every weight grows; the engine takes its weights and gives them back as around an update or a pass."""
    engine, trains = own.engine, mode == "train"
    around = own.offloaded.updating() if trains else nullcontext()
    with around, engine.train_mode() if trains else engine.eval_mode(), torch.no_grad():
        for parameter in engine.module.parameters() if by else ():
            parameter.add_(by)


def expected(own) -> dict[str, torch.Tensor]:
    """Of verl's whole weights."""
    found = {}
    for name, whole in own.engine.get_per_tensor_param()[0]:
        if name in own.coded:
            name, whole = coded([(name, whole)], INT8)[0]
        found[name] = whole.bfloat16() if whole.is_floating_point() and whole.dim() == 2 else whole
    return found


def synced(own, by=lambda weight: None) -> None:
    """A sync, before which a weight is written to: what leaves is what the engine has; then verl puts it away."""
    weight = dict(own.engine.module.named_parameters())[CODED]
    before = weight.to_local().clone()
    by(weight)
    assert torch.equal(before, weight.to_local()) == (by.__name__ == "<lambda>")
    receiving, wanted = Receiving(), expected(own)
    found = dict(receiving.take(list(own.as_sent(own.engine.get_per_tensor_param()[0], None))))
    assert receiving.prove() == len(wanted) and found.keys() == wanted.keys()
    assert all(torch.equal(found[name], one) for name, one in wanted.items())
    own.engine.to("cpu", model=True, optimizer=False, grad=False)


def in_place(weight) -> None:
    with torch.no_grad():
        weight.mul_(2)


def each(weight) -> None:
    """As optimizers and gradient clipping do, which a DTensor's version does not count."""
    with torch.no_grad():
        torch._foreach_mul_([weight], 2)


def of_data(weight) -> None:
    """As averages of weights and merged adapters are written."""
    weight.data.copy_(weight.data * 2)


def one_element(weight) -> None:
    weight.data.to_local()[0, 0] += 1


def of_the_shard(weight) -> None:
    weight._local_tensor.data.mul_(2)


def as_numpy(weight) -> None:
    weight.to_local().detach().numpy()[:] *= 2


def in_shared_memory(weight) -> None:
    shard = weight.to_local().detach()
    torch.empty(0).set_(shard.untyped_storage(), shard.storage_offset(), shard.shape).mul_(2)


WRITERS = (in_place, each, of_data, one_element, of_the_shard, as_numpy, in_shared_memory)


def check_what_leaves(folder) -> None:
    """As BF16 and as codes, whoever has written to the weights after the update."""
    own, _ = sender_of(folder)
    synced(own)  # the weights that training begins with
    for codes in (False, True):
        if codes:
            own.send_codes(INT8, frozenset({CODED, CODED.replace("up_proj", "down_proj")}))
        for by in (*WRITERS, lambda weight: None):
            update(own, 0.125)
            synced(own, by)


def check_moves(folder) -> None:
    for keeps, after_update in ((True, []), (False, ["grad", "model"])):
        own, moved = sender_of(folder, keeps)
        for mode, left in (("train", after_update), ("eval", ["model"])):
            update(own, 0.125, mode)
            assert moved[-1] == left, (keeps, mode)


def check_rank(rank: int, folder) -> None:
    join(rank, RANKS, folder)
    import verl  # noqa: F401  the plugin brings the cpu platform

    check_what_leaves(folder)
    check_moves(folder)
    leave()


def test_what_leaves_after_an_update_is_what_the_weights_are_by_then(tmp_path, monkeypatch):
    from packed_engine import plain_model

    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    plain_model().save_pretrained(tmp_path / "model")
    mp.spawn(check_rank, (tmp_path,), nprocs=RANKS)
