"""What has changed since the last weight sync, sent as such: the same tensors come out, or an error."""

from types import SimpleNamespace

import pytest
import torch

from ascend_quant.refit import RefitError
from ascend_quant.transfer import delta, delta_base
from ascend_quant.transfer.delta import NAME, Receiver, Sender

LARGE = 3 * delta.BLOCK + 40


def state(step: int, changed: int = 50) -> list[list[tuple[str, torch.Tensor]]]:
    """Groups of tensors of several dtypes; each step changes some elements of each."""
    sizes = {
        "q:int8": ((64, LARGE // 64), torch.int8),
        "bf16": ((700, 33), torch.bfloat16),
        "one": ((1,), torch.float32),
    }
    groups = [
        sizes,
        {"fp8": ((50, 48), torch.float8_e4m3fn), "empty": ((0, 4), torch.bfloat16), "odd": ((13,), torch.int8)},
    ]
    found = []
    for group in groups:
        found.append([])
        for name, (shape, dtype) in group.items():
            generator = torch.Generator().manual_seed(len(name))
            values = torch.randn(shape, generator=generator) * 30
            for _ in range(step):
                flat = values.view(-1)
                if flat.numel():
                    flat[torch.randint(0, flat.numel(), (changed,), generator=generator)] += 7
            found[-1].append((name, values.to(dtype)))
    return found


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    bytes_of = [one.contiguous().view(-1).view(torch.uint8) for one in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bytes_of)


def arrived(receiver: Receiver, blobs, settled: bool = True) -> list[list[tuple[str, torch.Tensor]]]:
    """Copies: the next sync patches their memory."""
    receiver.begin()
    found = [[(name, tensor.clone()) for name, tensor in receiver.take(*blob)] for blob in blobs]
    if settled:
        receiver.settle()
    return [group for group in found if group]


def sent(sender: Sender, groups, against: int | None = None) -> list[tuple[str, torch.Tensor]]:
    """The blobs of a sync whose receivers all have the last one, or another one."""
    sender.against = sender.number if against is None else against
    return list(sender.blobs(groups))


def check(found, wanted) -> None:
    assert [[name for name, _ in group] for group in found] == [[name for name, _ in group] for group in wanted]
    pairs = zip((pair for group in found for pair in group), (pair for group in wanted for pair in group), strict=True)
    assert all(same(a, b) for (_, a), (_, b) in pairs)


def test_every_sync_brings_the_tensors_and_later_ones_little():
    sender, receiver, sizes = Sender(), Receiver(), []
    for step in range(4):
        blobs = sent(sender, state(step))
        sizes.append(sum(blob.numel() for _, blob in blobs))
        check(arrived(receiver, blobs), state(step))
        assert receiver.has[:2] == (sender.sender, sender.number)
    whole = sum(tensor.nbytes for group in state(0) for _, tensor in group)
    assert whole < sizes[0] < 1.1 * whole
    assert all(size < 0.05 * whole for size in sizes[1:])


def test_a_base_is_kept_on_the_device_as_long_as_enough_stays_free(monkeypatch):
    free = [50]
    device = SimpleNamespace(mem_get_info=lambda: (free[0], 100))
    monkeypatch.setattr(torch, "get_device_module", lambda device_: device)
    base, group = delta_base.Base(torch.device("cpu"), reserve=50), torch.empty(8, dtype=torch.uint8, device="meta")
    base.keep(0, [], group)
    assert base.groups[0] is group
    free[0] = 49
    with pytest.raises(NotImplementedError):  # a copy to the host, which this device has none of
        base.keep(1, [], group)
    with pytest.raises(NotImplementedError):
        delta_base.Base(torch.device("cpu")).keep(0, [], group)


def test_nothing_changed_is_nearly_nothing():
    sender, receiver = Sender(), Receiver()
    for _ in range(2):
        blobs = sent(sender, state(1))
        check(arrived(receiver, blobs), state(1))
    assert sum(blob.numel() for _, blob in blobs) == 3 * delta.HEADER_BYTES + 4 * (4 + 1)


def test_a_group_that_has_changed_a_lot_is_sent_whole():
    sender, receiver = Sender(), Receiver()
    arrived(receiver, sender.blobs(state(0)))
    blobs = sent(sender, state(1, changed=10**6))
    assert all(delta._header(name, blob).base == 0 for name, blob in blobs)
    check(arrived(receiver, blobs), state(1, changed=10**6))
    later = sent(sender, state(2, changed=10**6))
    check(arrived(receiver, later), state(2, changed=10**6))


def test_other_tensors_than_before_are_sent_whole():
    sender, receiver = Sender(), Receiver()
    arrived(receiver, sender.blobs(state(0)))
    renamed = [[(f"{name}'", tensor) for name, tensor in group] for group in state(1)]
    check(arrived(receiver, sent(sender, renamed)), renamed)
    more = [*renamed, [("new", torch.arange(9))]]
    check(arrived(receiver, sent(sender, more)), more)
    check(arrived(receiver, sent(sender, renamed)), renamed)


@pytest.mark.parametrize(
    "lost", ["a new receiver", "a new sender", "a sender made anew", "half a sync", "not taken", "another number"]
)
def test_a_patch_never_meets_another_base(lost):
    sender, receiver = Sender(sender=1), Receiver()
    arrived(receiver, sender.blobs(state(0)))
    against = sender.number
    if lost == "a new receiver":
        receiver = Receiver()
    elif lost == "a new sender":
        sender, first = Sender(sender=2), sender
        list(sender.blobs(state(0)))
        assert sender.number == first.number
    elif lost == "a sender made anew":  # under the same driver, and its first sync went to others
        sender = Sender(sender=1)
        list(sender.blobs(state(0, changed=51)))
        assert (sender.sender, sender.number) == receiver.has[:2]
    elif lost == "half a sync":
        receiver.begin()
        receiver.take(*sent(sender, state(1), against)[0])
    elif lost == "not taken":  # by the engine: its proof failed
        arrived(receiver, sent(sender, state(1), against), settled=False)
    else:
        sent(sender, state(1), against)
    with pytest.raises(RefitError, match=f"{NAME}.0"):
        arrived(receiver, _patches(sender, state(2)))
    assert receiver.has is None
    check(arrived(receiver, sender.blobs(state(3))), state(3))  # whole
    check(arrived(receiver, sent(sender, state(4))), state(4))


def _patches(sender: Sender, groups) -> list[tuple[str, torch.Tensor]]:
    """As a sender makes them that believes its receivers to have what it sent last."""
    blobs = sent(sender, groups)
    assert [bool(delta._header(name, blob).base) for name, blob in blobs] == [True, True, False]  # the last has none
    return blobs


def test_whole_groups_are_sent_unless_all_have_the_last_sync():
    sender = Sender()
    list(sender.blobs(state(0)))
    for step in (-1, 1, -sender.number):
        against = sender.number + step
        assert all(delta._header(name, blob).base == 0 for name, blob in sent(sender, state(1), against))
        list(sender.blobs(state(0)))
    sender.against = sender.number
    next(sender.blobs(state(2)))
    assert sender.number == 0


def test_groups_that_are_lost_or_come_twice_are_named():
    sender, receiver = Sender(), Receiver()
    first, second, last = sender.blobs(state(0))
    for wrong in ([second], [first, first], [second, first], [first, last], [first, second, last, last]):
        with pytest.raises(RefitError, match=NAME):
            arrived(receiver, wrong)
    renamed = [(f"{NAME}.0", second[1]), (f"{NAME}.1", first[1]), last]
    with pytest.raises(RefitError, match=f"{NAME}.0"):
        arrived(receiver, renamed)
    check(arrived(receiver, [first, second, last]), state(0))
    mixed = [first, next(sender.blobs(state(0))), second]
    with pytest.raises(RefitError, match=NAME):
        arrived(receiver, mixed)


def test_what_is_no_blob_passes():
    other = ("ascend_quant.sent_digests", torch.arange(5, dtype=torch.uint8))
    assert Receiver().take(*other) == [other]


@pytest.mark.parametrize("came", [0, 1, 2])
def test_a_sync_that_lost_its_end_is_none_to_patch(came):
    """Or the next patches would go onto groups of the sync before it."""
    sender, receiver = Sender(), Receiver()
    for step in range(2):
        check(arrived(receiver, sent(sender, state(step))), state(step))
        assert receiver.has[:2] == (sender.sender, sender.number)
    arrived(receiver, sent(sender, state(2))[:came])
    assert receiver.has is None
    with pytest.raises(RefitError, match=NAME):
        arrived(receiver, _patches(sender, state(3)))
    check(arrived(receiver, sender.blobs(state(4))), state(4))  # whole


@pytest.mark.parametrize("layout", ['[["a","int8",[-4,-8]]]', '[["a","int8",[1e999]]]', '[["a","int8",[true]]]'])
@pytest.mark.parametrize("dtype", ["int8", "qint8", "quint4x2", "uint4"])
def test_layouts_that_no_tensor_has(layout, dtype):
    (_, blob), *_ = Sender().blobs([[("a", torch.zeros(4, 8, dtype=torch.int8))]])
    text = layout.replace("int8", dtype).encode()
    header = delta._header(NAME, blob)._replace(layout=len(text))
    wrong = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    damaged = torch.cat([delta._as_bytes(header, blob.device), wrong, torch.zeros(32, dtype=torch.uint8)])
    with pytest.raises(RefitError, match=f"{NAME}.0"):
        arrived(Receiver(), [(f"{NAME}.0", damaged)])


def test_views_that_are_negative_or_conjugate_travel_as_their_values():
    values = torch.randn(6, 4, dtype=torch.complex64)
    for view in (values.conj(), values.imag, values.conj().imag):
        check(arrived(Receiver(), Sender().blobs([[("a", view)]])), [[("a", view.resolve_conj().resolve_neg())]])


@pytest.mark.parametrize("seed", range(40))
def test_damaged_blobs_are_errors_or_other_tensors_and_never_a_crash(seed):
    generator = torch.Generator().manual_seed(seed)
    sender, receiver = Sender(), Receiver()
    blobs = list(sender.blobs(state(0)))
    if seed % 2:
        arrived(receiver, blobs)
        blobs = sent(sender, state(1))
    name, blob = blobs[seed % 4 // 2]
    at = int(torch.randint(0, min(len(blob), 160), (), generator=generator))
    damaged = blob.clone()
    damaged[at] ^= 1 << int(torch.randint(0, 8, (), generator=generator))
    if seed % 3 == 0:
        damaged = damaged[: at + 1]
    try:
        arrived(receiver, [(name, damaged) if one == name else (one, tensor) for one, tensor in blobs])
    except RefitError:
        assert receiver.has is None
    arrived(receiver, sender.blobs(state(2)))


def test_a_base_in_host_memory_is_the_same():
    sender, receiver = Sender(torch.device("cpu")), Receiver(torch.device("cpu"))
    for step in range(3):
        check(arrived(receiver, sent(sender, state(step))), state(step))


@pytest.mark.gpu
def test_a_base_in_host_memory_comes_to_a_gpu_ahead():
    sender, receiver = Sender(torch.device("cpu")), Receiver()
    for step in range(4):
        groups = [[(name, tensor.cuda()) for name, tensor in group] for group in state(step)]
        found = arrived(receiver, sent(sender, groups))
        check([[(name, tensor.cpu()) for name, tensor in group] for group in found], state(step))
