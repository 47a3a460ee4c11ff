"""A receipt's `changed` is the exact fraction or unknown, whatever an engine does between two refits."""

import pytest
import torch

from ascend_quant import oracle
from ascend_quant.kernels import npu
from ascend_quant.kernels.events import KernelClock
from ascend_quant.kernels.int4_layouts import MarlinTiles, PackedRows
from ascend_quant.kernels.storage import CODES
from ascend_quant.refit import Refit, RefitError, batch, code_snapshot, serving_state
from ascend_quant.refit.resident import ResidentWeight
from ascend_quant.refit.scales import BY_SHARING
from ascend_quant.schemes import SCHEMES

ROWS, LENGTH = 128, 128
MATRIX = (ROWS, LENGTH)
STACK = (2, ROWS, LENGTH)
CASES = [(scheme, shape, PackedRows) for scheme in SCHEMES.values() if scheme.quantized for shape in (MATRIX, STACK)]
CASES = [case for case in CASES if case[0].shares != "tensor" or case[1] == MATRIX]
CASES += [(SCHEMES["int4_g32"], shape, MarlinTiles) for shape in (MATRIX, STACK)]


class Engine:
    """One quantized weight and a norm."""

    def __init__(self, scheme, shape, layout_of=PackedRows):
        self.scheme, layout = scheme, None
        stack = shape[:-2]
        if scheme.codes == "int4":
            layout = layout_of(shape, scheme.group)
            data, scale = torch.empty(shape, dtype=torch.int8, device="meta"), layout.scales
        else:
            data = torch.zeros(shape, dtype=CODES[scheme.codes])
            blocks = (-(-ROWS // 128), -(-LENGTH // 128)) if scheme.shares == "block" else (ROWS,)
            scale = torch.zeros(*stack, *blocks)
        self.weight = BY_SHARING[scheme.shares]("w", data, scale, LENGTH, layout=layout)
        self.norm = ResidentWeight("norm", torch.zeros(6))
        self.refit = Refit([self.weight, self.norm])
        self.memory = [layout.tensor if layout else data, scale, self.norm.data]

    def load(self, w):
        """A refit; returns what its receipt says of changes."""
        with self.refit.session():
            for i, matrix in enumerate(w if w.dim() == 3 else [w]):
                slot = self.refit.batch.new_sources([(f"w{i}", matrix.numel())])
                view = self.weight.data[i] if w.dim() == 3 else self.weight.data
                self.refit.write(slot, self.weight, view, matrix, base=matrix)
            slot = self.refit.batch.new_sources([("norm", 6)])
            self.refit.write(slot, self.norm, self.norm.data, torch.ones(6))
        return self.refit.last_receipt.changed

    def sleep(self, level, told=True):
        """As vLLM's worker does; nothing is left in the buffers. Returns what a wake-up brings back."""
        if told:
            self.refit.falls_asleep(level)
        held = [tensor.clone() for tensor in self.memory]
        self.refit.slept(level)
        for tensor in self.memory:
            tensor.view(torch.uint8 if tensor.dtype != torch.float32 else torch.int32).fill_(85)
        return held if level == 1 else None

    def wake(self, held):
        for tensor, bytes_ in zip(self.memory, held or [], strict=False):
            tensor.copy_(bytes_)
        self.refit.woke(["kv_cache"])
        self.refit.woke(["weights"])

    def sleeps_and_wakes(self, level):
        self.wake(self.sleep(level))

    def changed(self, old, new):
        """By the definition: of the codes of rows 0, 64, 128, ..., counted through all matrices."""
        codes = [oracle.quantize(w, self.scheme)[0].reshape(-1, LENGTH)[::64].view(torch.int8) for w in (old, new)]
        return (codes[0] != codes[1]).double().mean().item()


def weights(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize(("scheme", "shape", "layout"), CASES)
@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_changes_no_count(level, scheme, shape, layout):
    engine = Engine(scheme, shape, layout)
    first, second = weights(shape, 0), weights(shape, 1)
    assert engine.load(first) is None  # there is nothing to compare with
    for w, expected in ((first, 0), (first, 0), (second, engine.changed(first, second)), (second, 0)):
        engine.sleeps_and_wakes(level)
        assert engine.load(w) == pytest.approx(expected, abs=1e-12)
    assert 0.5 < engine.changed(first, second) < 1  # the cases tell something
    assert engine.refit.last_receipt.digest == engine.refit.digest()


@pytest.mark.parametrize(
    ("module", "scheme", "level"),
    [("npu", "int8", 1), ("cuda", "int8", 2), ("cuda", "fp8", 2), ("cuda", "int4_g32", 2)],
)
def test_every_devices_kernels_count_the_same(module, scheme, level, request, monkeypatch):
    kernels = npu if module == "npu" else request.getfixturevalue("cuda").module
    for owner in (batch, serving_state):
        monkeypatch.setattr(owner, "kernels_for", lambda device: kernels)
    engine = Engine(SCHEMES[scheme], MATRIX, MarlinTiles)
    first, second = weights(MATRIX, 0), weights(MATRIX, 1)
    assert engine.load(first) is None
    engine.sleeps_and_wakes(level)
    assert engine.load(second) == pytest.approx(engine.changed(first, second))
    engine.sleeps_and_wakes(level)
    assert engine.load(second) == 0


@pytest.mark.parametrize("levels", [(2, 2), (2, 1), (1, 2)])
def test_several_sleeps_without_a_refit_between_them(levels):
    engine = Engine(SCHEMES["int8"], MATRIX)
    first, second = weights(MATRIX, 0), weights(MATRIX, 1)
    engine.load(first)
    for level in levels:
        engine.sleeps_and_wakes(level)
    assert engine.refit.why_not_servable() and engine.load(second) == pytest.approx(engine.changed(first, second))


def failed_refit(engine):
    with pytest.raises(RefitError):
        engine.load(weights(MATRIX, 2) * float("nan"))


def a_sleep_that_was_not_told_before(engine):
    engine.wake(engine.sleep(2, told=False))


def a_deeper_sleep_during_a_sleep(engine):
    engine.sleep(1)
    engine.wake(engine.sleep(2))


def bytes_written_past_the_refit(engine):
    engine.weight.data[0, 0] ^= 1
    with pytest.raises(RefitError):
        engine.refit.verify()


@pytest.mark.parametrize(
    "event",
    [failed_refit, a_sleep_that_was_not_told_before, a_deeper_sleep_during_a_sleep, bytes_written_past_the_refit],
)
def test_unknown_once_when_the_former_codes_are_lost(event):
    engine = Engine(SCHEMES["int8"], MATRIX)
    first, second = weights(MATRIX, 0), weights(MATRIX, 1)
    engine.load(first)
    event(engine)
    assert engine.load(first) is None
    assert "refit/changed" not in engine.refit.last_receipt.as_metrics()
    assert engine.load(second) == pytest.approx(engine.changed(first, second))


def test_too_little_host_memory_makes_it_unknown_and_says_so(monkeypatch, caplog):
    engine = Engine(SCHEMES["int8"], MATRIX)
    engine.load(weights(MATRIX, 0))

    def no_memory(*_, **__):
        raise RuntimeError("can't allocate memory")

    caplog.set_level("WARNING", code_snapshot.logger.name)  # whatever others have set the root logger to
    monkeypatch.setattr(code_snapshot.torch, "empty", no_memory)
    held = engine.sleep(2)
    monkeypatch.undo()
    engine.wake(held)
    assert "can't allocate memory" in caplog.text and engine.load(weights(MATRIX, 0)) is None


def test_dummy_weights_are_no_former_refit():
    engine = Engine(SCHEMES["int8"], MATRIX)
    engine.refit.accept_dummy()
    engine.sleeps_and_wakes(2)
    assert engine.load(weights(MATRIX, 0)) is None


def test_an_engine_without_quantized_weights():
    session = Refit([ResidentWeight("norm", torch.zeros(6))])
    for changed in (None, 0.0, 0.0):
        with session.session():
            slot = session.batch.new_sources([("norm", 6)])
            session.write(slot, session.residents[0], session.residents[0].data, torch.ones(6))
        assert session.last_receipt.changed == changed
        session.falls_asleep(2)
        session.slept(2)
        session.woke(None)


def test_the_kernels_time_is_a_part_of_the_refits():
    engine = Engine(SCHEMES["int8"], MATRIX)
    engine.load(weights(MATRIX, 0))
    receipt = engine.refit.last_receipt
    assert 0 < receipt.kernel_ms < receipt.milliseconds
    assert receipt.as_metrics()["refit/kernel_ms"] == receipt.kernel_ms


def test_device_time_is_that_between_pairs_of_events(monkeypatch):
    class Device:
        now, waits = 0.0, 0

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = Device.now

            def elapsed_time(self, end):
                return end.at - self.at

    monkeypatch.setattr(torch, "get_device_module", lambda device: Device)
    clock = KernelClock(torch.device("cuda"))
    for duration in (3.0, 4.0):
        with clock.running():
            Device.now += duration
        Device.now += 100  # a trainer is waited for
    assert clock.milliseconds() == 7.0
