"""A refit without any engine: rows, books, states."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naming import has_line_naming, line_naming
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_quant import oracle
from ascend_quant.engine.addresses import Addresses
from ascend_quant.kernels import chunks
from ascend_quant.kernels.cpu import refit as cpu_refit
from ascend_quant.refit import Check, Derived, Refit, RefitError
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight


def linear(rows=8, length=6, whole=None, parts=()):
    codes = torch.zeros(rows, length, dtype=torch.int8)
    return QuantizedWeight("fc.weight", codes, torch.zeros(rows, 1), whole or length, parts)


def put(refit, resident, view, shard, whole=None, name="w"):
    refit.write(refit.batch.new_sources([(name, shard.numel())]), resident, view, shard, whole)
    refit.batch.flush()


def opened(*residents):
    refit = Refit(residents)
    refit.open()
    return refit


def ready(*residents):
    refit = Refit(residents)
    with refit.session():
        for resident in residents:
            put(refit, resident, resident.data, torch.randn(resident.data.shape))
    return refit


def test_rows_written_in_any_order_equal_the_oracle():
    w_NK = torch.randn(8, 6)
    weight = linear()
    refit = Refit([weight])
    with refit.session():
        for rows in (slice(5, 8), slice(0, 2), slice(2, 5)):
            put(refit, weight, weight.data[rows], w_NK[rows])
    codes, scale = oracle.quantize_weight(w_NK)
    assert torch.equal(weight.data, codes) and torch.equal(weight.scale.view(-1), scale)


def test_stacked_experts_and_single_rows_equal_the_oracle():
    w_ENK = torch.randn(3, 4, 5)
    codes = torch.zeros(3, 4, 5, dtype=torch.int8)
    weight = QuantizedWeight("w13", codes, torch.zeros(3, 4, 1), 5)
    refit = opened(weight)
    put(refit, weight, weight.data[:2], w_ENK[:2])
    put(refit, weight, weight.data[2, :3], w_ENK[2, :3])
    put(refit, weight, weight.data[2, 3], w_ENK[2, 3])
    expected, scale = oracle.quantize_weight(w_ENK)
    assert torch.equal(codes, expected) and torch.equal(weight.scale.squeeze(-1), scale)
    assert weight.unwritten == 0


def test_gate_half_of_every_expert_at_once():
    w_ENK = torch.randn(3, 4, 5)
    weight = QuantizedWeight("w13", torch.zeros(3, 8, 5, dtype=torch.int8), torch.zeros(3, 8, 1), 5)
    put(opened(weight), weight, weight.data[:, :4], w_ENK)
    assert torch.equal(weight.data[:, :4], oracle.quantize_weight(w_ENK)[0])
    assert weight.unwritten == 12 and not weight.data[:, 4:].any()


def test_a_row_parallel_slice_takes_its_scale_from_the_whole_row():
    w_NK = torch.randn(8, 12)
    weight = linear(whole=12)
    refit = opened(weight)
    put(refit, weight, weight.data, w_NK[:, 6:], w_NK)
    codes, scale = oracle.quantize_weight(w_NK)
    assert torch.equal(weight.data, codes[:, 6:]) and torch.equal(weight.scale.view(-1), scale)
    refit.close()
    refit.open()
    with pytest.raises(RefitError, match=r"fc\.weight.*6 of 12 input channels"):
        put(refit, weight, weight.data, w_NK[:, 6:])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (torch.zeros(8, 5), r"shape \(8, 5\) does not fit \(8, 6\)"),
        (torch.full((8, 6), float("nan")), "48 of 48 elements are NaN or Inf"),
        (torch.zeros(8, 6, dtype=torch.int8), "send BF16 weights"),
    ],
)
def test_bad_shards_are_named(source, message):
    weight = linear()
    with pytest.raises(RefitError, match=rf"fc\.weight.*{message}"):
        put(opened(weight), weight, weight.data, source, name="fc.weight")


@pytest.mark.parametrize("kind", ["linear", "plain"])
@pytest.mark.parametrize(
    "name", ["int8", "uint8", "int16", "int32", "int64", "bool", "complex64", "float8_e4m3fn", "float8_e5m2"]
)
def test_what_is_no_float_that_weights_arrive_in_is_refused(kind, name):
    dtype = getattr(torch, name)
    weight = linear() if kind == "linear" else ResidentWeight("embed", torch.zeros(8, 6, dtype=torch.bfloat16))
    with pytest.raises(RefitError, match=rf"{weight.name}: got {dtype}"):
        put(opened(weight), weight, weight.data, torch.ones(8, 6).to(dtype))
    assert not weight.data.any()


def test_a_parameter_of_integers_takes_its_own_dtype():
    table = ResidentWeight("tid2eid", torch.zeros(8, 6, dtype=torch.int32))
    with pytest.raises(RefitError, match=r"tid2eid: got torch\.float32"):
        put(opened(table), table, table.data, torch.ones(8, 6))
    put(opened(table), table, table.data, torch.arange(48, dtype=torch.int32).view(8, 6))
    assert torch.equal(table.data.view(-1), torch.arange(48, dtype=torch.int32))


@pytest.mark.parametrize(
    "view",
    [
        lambda data: data.clone(),
        lambda data: data.as_strided((8, 6), (6, 1), data.storage_offset() + 6),  # one row beyond
        lambda data: data.as_strided((8, 6), (6, 1), data.storage_offset() - 6),
        lambda data: data.as_strided((8, 6), (12, 1), data.storage_offset()),
    ],
)
def test_a_write_that_leaves_the_buffer_is_an_error(view):
    memory = torch.zeros(40, 6, dtype=torch.int8)
    weight = QuantizedWeight("fc.weight", memory[6:14], torch.zeros(8, 1), 6)
    refit = opened(weight)
    with pytest.raises(RefitError, match=line_naming("fc.weight:", "shape (8, 6)")):
        put(refit, weight, view(weight.data), torch.ones(8, 6))
    assert weight.unwritten == 8 and not memory.any()


def test_a_row_written_twice_is_an_error_but_one_shard_may_overlap_itself():
    weight = linear()
    refit = opened(weight)
    slot = refit.batch.new_sources([("a", 54)])
    refit.write(slot, weight, weight.data[:4], torch.randn(4, 6))
    refit.write(slot, weight, weight.data[:5], torch.randn(5, 6))
    with pytest.raises(RefitError, match=r"fc\.weight.*written twice"):
        put(refit, weight, weight.data[3:], torch.randn(5, 6))
    put(refit, weight, weight.data[5:], torch.randn(3, 6))
    assert refit.close().digest == refit.digest()  # though rows were written twice


def test_a_write_that_splits_rows_is_an_error():
    weight = linear()
    with pytest.raises(RefitError, match="splits rows of 6"):
        put(opened(weight), weight, weight.data[:, :3], torch.randn(8, 3))


def test_missing_parts_are_named_by_their_checkpoint_names():
    weight = linear(parts=[("q.weight", 4), ("k.weight", 2), ("v.weight", 2)])
    refit = Refit([weight])
    with pytest.raises(RefitError, match=r"2 missing .*: q\.weight, v\.weight$"), refit.session():
        put(refit, weight, weight.data[4:6], torch.randn(2, 6))
    assert "missing" in refit.why_not_servable()


def test_states():
    weight = linear()
    refit = Refit([weight])
    with pytest.raises(RefitError, match="not been loaded"):
        refit.require_servable()
    refit = ready(weight)
    refit.require_servable()
    refit.open()
    with pytest.raises(RefitError, match=r"refit is open"):
        refit.require_servable()
    with pytest.raises(RefitError, match="already open"):
        refit.open()
    refit.fail(RuntimeError("trainer died"))
    with pytest.raises(RefitError, match=line_naming("trainer died", "full refit")):
        refit.require_servable()
    with refit.session():
        put(refit, weight, weight.data, torch.randn(8, 6))
    refit.require_servable()
    with pytest.raises(RefitError, match="no refit"):
        refit.close()


def test_the_receipt_counts_changes_and_its_digest_follows_the_bytes():
    weight, norm = linear(), ResidentWeight("norm", torch.zeros(6))
    w_NK = torch.randn(8, 6)
    refit = ready(weight, norm)
    digests = []
    for step in range(3):
        with refit.session():
            put(refit, weight, weight.data, w_NK)
            put(refit, norm, norm.data, torch.full((6,), float(step // 2)))
            refit.received.count(2, w_NK.nbytes + 24)
        digests.append(refit.last_receipt.digest)
    receipt = refit.last_receipt
    assert (receipt.number, receipt.tensors, receipt.bytes, receipt.changed) == (4, 2, w_NK.nbytes + 24, 0.0)
    assert digests[0] == digests[1] != digests[2]
    assert refit.last_receipt.digest == refit.digest()
    w_NK[0] *= -1
    w_NK[3] *= -1  # not a sampled row
    with refit.session():
        put(refit, weight, weight.data, w_NK)
        put(refit, norm, norm.data, torch.ones(6))
    assert refit.last_receipt.changed == int((oracle.quantize_weight(w_NK)[0][0] != 0).sum()) / 6
    metrics = refit.last_receipt.as_metrics()
    assert metrics["refit/changed"] == refit.last_receipt.changed
    assert refit.last_receipt.digests() == {"weights": refit.last_receipt.digest}
    assert all(isinstance(value, (int, float)) for value in metrics.values())


def test_bytes_that_change_behind_the_refits_back_are_seen():
    weight = linear()
    refit = ready(weight)
    refit.verify()
    weight.data[0, 0] ^= 1
    with pytest.raises(RefitError, match="outside a refit"):
        refit.verify()
    with pytest.raises(RefitError, match="refuses to generate"):
        refit.require_servable()


@pytest.mark.parametrize("how", ["its data", "its place", "an attribute"])
def test_a_moved_parameter_is_seen_and_the_next_refit_puts_it_back(how):
    weight, layer = linear(), nn.Linear(6, 8, bias=False)
    layer.weight = nn.Parameter(weight.data, requires_grad=False)
    refit = Refit([weight], Addresses(nn.ModuleDict({"fc": layer})))
    own, address = layer.weight, weight.data.data_ptr()
    for moment in ("open", "ready"):
        with pytest.raises(RefitError, match=r"fc\.weight moved"), refit.session():
            put(refit, weight, weight.data, torch.randn(8, 6))
            if moment == "ready":
                refit.close()
            if how == "its data":
                layer.weight.data = weight.data.clone()
            elif how == "its place":
                layer.weight = nn.Parameter(weight.data.clone(), requires_grad=False)
            else:
                del layer.weight
                layer.weight = weight.data.clone()
            if moment == "ready":
                refit.verify()
        assert "full refit" in refit.why_not_servable()
        with refit.session():
            put(refit, weight, weight.data, torch.randn(8, 6))
        refit.require_servable()
        assert layer.weight is own and own.data_ptr() == address


def test_a_glance_sees_what_the_samples_hold_and_names_it():
    weight, norm = linear(), ResidentWeight("norm.weight", torch.ones(6))
    refit = ready(weight, norm)
    refit.glance()
    refit.require_servable()
    weight.scale[3] = 2
    refit.glance()
    assert has_line_naming(refit.why_not_servable(), "fc.weight changed")
    assert "norm" not in refit.why_not_servable()


def test_a_glance_is_at_what_the_last_refit_left(monkeypatch):
    """The first refit notes it, and each one once there was a glance; what is not noted is digested once."""
    weight, read = linear(), []
    refit = ready(weight)
    digest = refit.digest
    monkeypatch.setattr(refit, "digest", lambda: read.append(True) or digest())
    for glances, digests in ((False, 0), (True, 1), (True, 1)):
        with refit.session():
            put(refit, weight, weight.data, torch.randn(8, 6))
        for _ in range(2 if glances else 0):
            refit.glance()
            refit.require_servable()
        assert len(read) == digests
    weight.data[1, 1] ^= 1
    refit.glance()
    assert has_line_naming(refit.why_not_servable(), "fc.weight changed")


@pytest.mark.parametrize("moment", ["ready", "open"])
def test_bytes_that_a_stranger_may_have_written_are_looked_at_once(monkeypatch, moment):
    weight, read = linear(), []
    refit = ready(weight)
    digest = refit.digest
    monkeypatch.setattr(refit, "digest", lambda: read.append(True) or digest())
    with refit.session():
        put(refit, weight, weight.data, torch.randn(8, 6))
        if moment == "open":
            refit.may_have_been_written()
            refit.look()  # a request comes: nothing to compare with yet
            assert not refit.is_to_be_looked_at and not read
            weight.data[7, 5] ^= 1
    if moment == "ready":
        refit.may_have_been_written()
        weight.data[7, 5] ^= 1
    assert refit.is_to_be_looked_at
    refit.look()
    assert "changed outside" in refit.why_not_servable() and read == [True]
    with refit.session():
        put(refit, weight, weight.data, torch.randn(8, 6))
    refit.require_servable()
    refit.may_have_been_written()
    refit.require_servable()
    refit.require_servable()
    assert len(read) == 2


@pytest.mark.parametrize("call", ["write", "place", "batch", "close"])
@pytest.mark.parametrize("state", ["new", "closed", "failed"])
def test_without_an_open_refit_nothing_is_written(call, state):
    weight = linear()
    refit = Refit([weight]) if state == "new" else ready(weight)
    if state == "failed":
        refit.open()
        refit.fail(RuntimeError("trainer died"))
    calls = {"write": (0, weight, weight.data, torch.ones(8, 6)), "place": ([("w", torch.ones(8, 6))],)}
    with pytest.raises(RefitError, match="no refit"):
        getattr(refit, call)(*calls.get(call, ()))


def test_a_refit_of_nothing_is_an_error():
    with pytest.raises(RefitError, match="parameter"):
        Refit([])


class Never(Check):
    """A check that no refit stands."""

    begun = 0

    def begin(self):
        self.begun += 1

    def check(self, entries):
        raise RefitError("never")


def test_a_check_of_the_whole_decides_before_the_engine_may_serve():
    weight, check = linear(), Never()
    refit = Refit([weight], checks=[check])
    for number in (1, 2):
        with pytest.raises(RefitError, match="never"), refit.session():
            put(refit, weight, weight.data, torch.randn(8, 6))
        assert "never" in refit.why_not_servable() and check.begun == number


def test_what_is_derived_from_weights_is_of_the_same_refit():
    weight, derived = linear(), torch.zeros(8, 6)
    refit = Refit([weight], checks=[Derived([lambda: derived.copy_(weight.data * weight.scale)])])
    for _ in range(2):
        w_NK = torch.randn(8, 6)
        with refit.session():
            put(refit, weight, weight.data, w_NK)
        assert torch.equal(derived, oracle.dequantize(*oracle.quantize_weight(w_NK)))


class LargestTensor(TorchDispatchMode):
    """The largest tensor that any operation makes (views are not new)."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and not func.is_view and tensor is not args[0]:
                self.bytes = max(self.bytes, tensor.nbytes)
        return out


@pytest.mark.parametrize("kind", ["whole", "slice", "plain"])
def test_extra_memory_does_not_grow_with_the_weight(kind, monkeypatch):
    monkeypatch.setattr(cpu_refit, "ROWS", 16)
    monkeypatch.setattr(chunks, "ELEMENTS", 1 << 12)
    peaks = []
    for rows in (512, 2048):
        source = torch.randn(rows, 128).to(torch.bfloat16)
        part = source[:, 32:96] if kind == "slice" else source
        plain = ResidentWeight("embed", torch.zeros(rows, 128, dtype=torch.bfloat16))
        weight = plain if kind == "plain" else linear(rows, part.shape[1], whole=128)
        with LargestTensor() as largest, Refit([weight]).session() as refit:
            put(refit, weight, weight.data, part, source)
        peaks.append(largest.bytes)
    assert peaks[0] == peaks[1] < source.nbytes / 8


def test_a_failure_is_logged_once(caplog):
    refit = Refit([linear(parts=[("q.weight", 8)])])
    with pytest.raises(RefitError, match=r"q\.weight"), refit.session():
        pass
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_sleeping_engine_is_not_refitted_and_serves_again_only_with_its_own_bytes():
    weight = linear()
    refit = ready(weight)
    refit.slept(1)
    with pytest.raises(RefitError, match="wake up"):
        refit.open()
    with pytest.raises(RefitError, match=line_naming("level 1", "wake it up")):
        refit.require_servable()
    refit.woke(["kv_cache"])
    assert refit.why_not_servable()
    refit.woke(None)
    refit.require_servable()
    refit.slept(1)
    weight.data[0, 0] ^= 1  # what came back is not what went
    refit.woke(["weights"])
    with pytest.raises(RefitError, match="outside a refit"):
        refit.require_servable()


def test_what_came_back_from_a_sleep_is_read_when_a_request_comes_and_not_before(monkeypatch):
    weight, read = linear(), []
    refit = ready(weight)
    digest = refit.digest
    monkeypatch.setattr(refit, "digest", lambda: read.append(True) or digest())
    refit.slept(1)
    refit.woke(["weights"])
    assert refit.unseen and refit.why_not_servable() is None and not read
    with refit.session():  # as a trainer does at once
        put(refit, weight, weight.data, torch.randn(8, 6))
    assert not refit.unseen
    refit.look()
    assert not read
    refit.slept(1)
    refit.woke(None)
    refit.look()
    refit.look()
    assert read == [True] and refit.why_not_servable() is None
    refit.slept(1)
    weight.data[0, 0] ^= 1
    refit.woke(None)
    refit.slept(1)  # asleep again, nothing may be read
    refit.look()
    assert len(read) == 1
    refit.woke(None)
    refit.look()
    assert "outside a refit" in refit.why_not_servable()
    with refit.session():
        put(refit, weight, weight.data, torch.randn(8, 6))
    refit.require_servable()


def test_level_2_sleep_needs_a_complete_refit():
    weight = linear()
    refit = ready(weight)
    for level in (2, 1):  # a second, lighter sleep brings nothing back
        refit.slept(level)
    refit.woke(["weights"])
    with pytest.raises(RefitError, match=line_naming("sleep level 2", "full refit")):
        refit.require_servable()
    with refit.session():
        put(refit, weight, weight.data, torch.randn(8, 6))
    refit.require_servable()


def test_sleep_in_the_middle_of_a_refit_fails_it():
    weight = linear()
    refit = ready(weight)
    refit.open()
    refit.slept(1)
    refit.woke(None)
    with pytest.raises(RefitError, match=r"sleep.* open"):
        refit.require_servable()


class Interrupted(Exception):
    pass


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_interrupted_anywhere_it_refuses_until_a_complete_refit(data):
    """An exception at any call that a refit makes, in the books or in the kernels."""
    weights = [linear(), ResidentWeight("norm", torch.zeros(6)), ResidentWeight("embed", torch.zeros(16, 4))]
    refit = ready(*weights)
    sources = [torch.randn(weight.data.shape) for weight in weights]
    whole = _calls(refit, weights, sources, None)
    assert refit.why_not_servable() is None
    stop_at = data.draw(st.integers(0, whole - 1))
    with pytest.raises(Interrupted):
        _calls(refit, weights, [source * 2 for source in sources], stop_at)
    assert "refit failed" in refit.why_not_servable()
    _calls(refit, weights, sources, None)
    assert refit.why_not_servable() is None
    for weight, source in zip(weights, sources, strict=True):
        assert torch.equal(weight.data, oracle.quantize_weight(source)[0] if weight.codes else source)


class Interrupting(TorchDispatchMode):
    """Counts torch operations and raises at one of them."""

    def __init__(self, stop_at):
        super().__init__()
        self.calls, self.stop_at = 0, stop_at

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.calls == self.stop_at:
            raise Interrupted
        self.calls += 1
        return func(*args, **(kwargs or {}))


def _calls(refit, weights, sources, stop_at) -> int:
    with refit.session(), Interrupting(stop_at) as mode:
        for weight, source in zip(weights, sources, strict=True):
            put(refit, weight, weight.data, source)
    return mode.calls
