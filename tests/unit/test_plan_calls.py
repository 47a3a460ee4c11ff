"""A plan looks up whole calls: what it learnt of one call's tensors must not be used for others."""

import pytest
import torch
from naming import line_naming

from ascend_quant import oracle
from ascend_quant.engine.loading import Loading, storage_of
from ascend_quant.engine.unmatched import UnmatchedWeights
from ascend_quant.refit import Refit, RefitError
from ascend_quant.refit.plan import FEWEST, LAST, MOST, WAYS, Entry, together
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight
from ascend_quant.schemes import SCHEMES
from ascend_quant.transfer import prequantized

NAMES = ("up", "norm", "down", "elsewhere")


class Engine:
    """Two quantized weights and a norm, whose loader copies; it has no use for a fourth tensor."""

    def __init__(self):
        self.residents = {
            "up": QuantizedWeight("up", torch.zeros(6, 4, dtype=torch.int8), torch.zeros(6), 4),
            "norm": ResidentWeight("norm", torch.zeros(4, dtype=torch.bfloat16)),
            "down": QuantizedWeight("down", torch.zeros(4, 6, dtype=torch.int8), torch.zeros(4), 6),
        }
        self.refit = Refit(list(self.residents.values()))
        self.by_loader = []

    def load(self, *calls):
        with self.refit.session():
            for call in calls:
                for group in together(call):
                    for name, tensor in self.refit.place(group):
                        self._take(name, tensor)
                    self.refit.batch.flush()

    def _take(self, name, tensor):
        self.by_loader.append(name)
        slot = self.refit.batch.new_sources([(name, tensor.numel())])
        entry = Entry(tensor.shape)
        if name in self.residents:
            resident = self.residents[name]
            for one in self.refit.write(slot, resident, resident.data, tensor):
                entry.add(resident, one)
            self.refit.received.count(1, tensor.nbytes)
        entry.by_loader = not tensor.is_contiguous()
        self.refit.record(name, entry)

    def check(self, state):
        for name in ("up", "down"):
            codes, scale = oracle.quantize_weight(state[name])
            assert torch.equal(self.residents[name].data, codes) and torch.equal(self.residents[name].scale, scale)
        assert torch.equal(self.residents["norm"].data, state["norm"].to(torch.bfloat16))
        receipt = self.refit.last_receipt
        assert receipt.digest == self.refit.digest()
        assert receipt.tensors == 3 and receipt.bytes == sum(state[name].nbytes for name in self.residents)


def state_of(dtype=torch.bfloat16):
    return dict(zip(NAMES, (torch.randn(*shape).to(dtype) for shape in ((6, 4), (4,), (4, 6), (2, 2))), strict=True))


@pytest.fixture
def engine():
    engine = Engine()
    engine.load(list(state_of().items()))
    assert engine.by_loader == list(NAMES)
    engine.by_loader.clear()
    return engine


@pytest.mark.parametrize("calls", [[[0, 1, 2, 3]], [[0], [1, 2], [3]], [[3, 2], [1, 0]]])
def test_calls_of_any_kind_and_again(engine, calls):
    for _ in range(3):
        state = state_of()
        pairs = list(state.items())
        engine.load(*([pairs[i] for i in call] for call in calls))
        engine.check(state)
    assert engine.by_loader == []


def test_a_call_is_looked_up_once(engine):
    engine.load(list(state_of().items()))
    known = dict(engine.refit.plan._calls)
    engine.load(list(state_of().items()))
    assert known and engine.refit.plan._calls == known
    engine.load(list(state_of(torch.float32).items()))
    assert engine.refit.plan._calls != known


def test_tensors_that_differ_in_what_no_move_depends_on_are_not_looked_up_again(engine):
    state = state_of()
    engine.load(list(state.items()))
    known = dict(engine.refit.plan._calls)
    with torch.inference_mode():
        in_inference = {name: tensor.clone() for name, tensor in state.items()}
    for given in (in_inference, {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}):
        engine.load(list(given.items()))
        engine.check(state)
        assert engine.refit.plan._calls == known


def test_a_sender_that_never_sends_the_same_way_twice(engine):
    state = state_of()
    pairs = list(state.items())
    for turn in range(24):
        order = sorted(range(4), key=lambda i: (turn >> i & 1, (turn * 5 + i * 3) % 7))
        engine.load([pairs[i] for i in order[: turn % 4]], [pairs[i] for i in order[turn % 4 :]])
        engine.check(state)
        assert sum(len(call.names) for call in engine.refit.plan._calls.values()) <= WAYS * len(NAMES)
    assert engine.by_loader == []


def test_a_refit_tensor_by_tensor_leaves_what_was_known_of_lists_and_buckets(engine):
    pairs = list(state_of().items())
    for calls in ([pairs], [pairs], [pairs[:2], pairs[2:]]):
        engine.load(*calls)
    known = dict(engine.refit.plan._calls)
    assert len(known) == 3
    engine.load(iter(pairs))
    assert known.items() <= engine.refit.plan._calls.items()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_another_dtype_in_the_same_call(engine, dtype):
    for state in (state_of(), state_of(dtype), state_of()):
        engine.load(list(state.items()))
        engine.check(state)
    assert engine.by_loader == []


def test_a_transposed_tensor_goes_to_the_loader_and_is_learnt_again(engine):
    state = state_of()
    strange = {**state, "up": state["up"].T.contiguous().T}
    for given, way in ((state, []), (strange, ["up"]), (strange, ["up"]), (state, ["up"]), (state, [])):
        engine.by_loader.clear()
        engine.load(list(given.items()))
        engine.check(state)
        assert engine.by_loader == way


def test_what_is_not_used_here_may_have_any_shape_or_stay_away(engine):
    state = state_of()
    engine.load(list({**state, "elsewhere": torch.zeros(7)}.items()))
    engine.check(state)
    engine.load([(name, state[name]) for name in ("down", "up", "norm")])
    engine.check(state)
    assert engine.by_loader == []


@pytest.mark.parametrize(
    "calls", [["up norm down up"], ["up norm", "down up"], ["elsewhere up norm down", "elsewhere"]]
)
def test_a_name_that_comes_twice(engine, calls):
    state = state_of()
    with pytest.raises(RefitError, match=r"(up|elsewhere): sent twice"):
        engine.load(*([(name, state[name]) for name in call.split()] for call in calls))
    engine.load(list(state.items()))
    engine.check(state)


def test_a_wrong_shape_is_refused_and_forgotten(engine):
    state = state_of()
    for _ in range(2):
        engine.load(list(state.items()))
        with pytest.raises(RefitError, match=r"\(5, 4\) does not fit"):
            engine.load(list({**state, "up": state["up"][:5]}.items()))
    engine.by_loader.clear()
    engine.load(list(state.items()))
    engine.check(state)
    assert engine.by_loader == []


def test_an_unknown_name_ends_the_plan_and_rows_stay_counted(engine):
    state = state_of()
    engine.load([("up", state["up"])], [("new", torch.zeros(1)), *list(state.items())[1:]])
    engine.check(state)
    assert engine.by_loader == ["new", *NAMES[1:]]
    with pytest.raises(RefitError, match="written twice"):
        engine.load([("up", state["up"])], [("newer", torch.zeros(1)), *state.items()])


def test_a_missing_tensor_is_named(engine):
    state = state_of()
    with pytest.raises(RefitError, match=r"\b1 missing .*: norm$"):
        engine.load([(name, state[name]) for name in ("down", "up")])


def test_lists_stay_and_generators_do_not():
    pairs = [(str(i), torch.zeros(1)) for i in range(5 * MOST)]
    groups = list(together(pairs))
    assert [pair for group in groups for pair in group] == pairs
    sizes = [len(group) for group in groups]
    assert sizes[0] == FEWEST and max(sizes) == MOST and LAST <= sizes[-1] < 2 * LAST
    assert len(list(together(pairs[: 2 * FEWEST - 1]))) == 1
    assert [list(group) for group in together(iter(pairs[:3]))] == [[pair] for pair in pairs[:3]]


class CodedEngine:
    """One weight that is sent as codes, through the hook that learns where a loader's copies go."""

    def __init__(self, scheme):
        self.scheme, dtype = SCHEMES[scheme], prequantized.codes_dtype(SCHEMES[scheme])
        self.up = QuantizedWeight("up", torch.zeros(6, 48, dtype=dtype), torch.zeros(6), 48)
        self.refit = Refit([self.up])
        self.by_loader = 0

    def load(self, name, sent):
        loading = Loading(self.refit, {storage_of(self.up.data): self.up}, 1, UnmatchedWeights(None, 0), True)
        with self.refit.session(), loading, loading.naming():
            for _, tensor in loading.feed([(name, sent)]):
                self.by_loader += 1
                self.up.data.copy_(tensor)

    def check(self, w):
        codes, scale = oracle.quantize(w, self.scheme)
        assert torch.equal(self.up.data.view(torch.int8), codes.view(torch.int8))
        assert torch.equal(self.up.scale, scale.view(-1))
        assert self.refit.last_receipt.digest == self.refit.digest()


LAID_OTHERWISE = {
    "rows with others between": lambda sent: torch.cat([sent, sent], 1)[:, : sent.shape[1]],
    "rows with zeros between": lambda sent: torch.cat([sent, torch.zeros_like(sent)], 1)[:, : sent.shape[1]],
    "a gap behind each row": lambda sent: torch.cat([sent, sent[:, :16]], 1)[:, : sent.shape[1]],
    "columns as rows": lambda sent: sent.t().contiguous().t(),
    "every second column": lambda sent: sent.repeat_interleave(2, 1)[:, ::2],
    "every second row": lambda sent: sent.repeat_interleave(2, 0)[::2],
    "backwards signs": lambda sent: torch._neg_view((-sent.view(torch.int8)).view(sent.dtype)),
}


@pytest.mark.parametrize("known", [False, True], ids=["by the loader", "by plan"])
@pytest.mark.parametrize("laid", LAID_OTHERWISE)
@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_codes_that_lie_otherwise_in_memory_are_refused_by_their_strides(scheme, laid, known):
    """Rows would be read one behind the other, whatever lies between: other bytes, which the proof cannot see."""
    engine = CodedEngine(scheme)
    first, second, third = (torch.randn(6, 48).bfloat16() for _ in range(3))
    if known:
        engine.load(*prequantized.coded([("up", first)], engine.scheme)[0])
    [(name, sent)] = prequantized.coded([("up", second)], engine.scheme)
    other = LAID_OTHERWISE[laid](sent)
    with pytest.raises(RefitError, match=line_naming(name, str(other.stride()))):
        engine.load(name, other)
    for w in (third, first):
        engine.load(*prequantized.coded([("up", w)], engine.scheme)[0])
        engine.check(w)
    assert engine.by_loader <= 1  # what was refused has not spoiled the plan
