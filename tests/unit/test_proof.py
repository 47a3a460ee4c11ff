"""The proof: digests of parts add up however a tensor is cut, any change is seen, and a message says what and where."""

import itertools
import json
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naming import has_line_naming, line_naming

from ascend_quant import oracle
from ascend_quant.refit import RefitError
from ascend_quant.schemes.layer_names import Unquantized
from ascend_quant.transfer.checksums import FORMAT, SENT, Receiving, decode, encode, sending
from ascend_quant.transfer.digests import Digest, Digests, compare

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int8)
shapes = st.tuples(st.integers(1, 9), st.integers(1, 9))


def tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Random values, all positive, so that any flipped bit is another value."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 100 + 1).to(dtype)


def digest_of(whole: torch.Tensor) -> Digest:
    return Digest(oracle.digest(whole), whole.numel(), str(whole.dtype), tuple(whole.shape))


def digests_of(weights: dict[str, torch.Tensor]) -> dict[str, Digest]:
    digests = Digests()
    digests.add_all(weights.items())
    return digests.as_dict()


def cuts(draw: st.DrawFn, length: int) -> list[tuple[int, int]]:
    inner = draw(st.sets(st.integers(1, length - 1))) if length > 1 else set()
    edges = [0, *sorted(inner), length]
    return list(itertools.pairwise(edges))


@st.composite
def split_tensors(draw: st.DrawFn) -> tuple[torch.Tensor, list[tuple[int, int, torch.Tensor]]]:
    """A matrix or a vector, and parts of it in any order, each with its first row and column."""
    rows, columns = draw(shapes)
    whole = tensor((rows, columns), draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99)))
    if draw(st.booleans()):
        whole = whole[:, 0]
        parts = [(a, 0, whole[a:b]) for a, b in cuts(draw, rows)]
    else:
        parts = [(a, c, whole[a:b, c:d]) for a, b in cuts(draw, rows) for c, d in cuts(draw, columns)]
    return whole, draw(st.permutations(parts))


@given(split_tensors(), st.randoms())
def test_parts_add_up_to_the_whole_in_any_order_on_any_ranks(split, chance):
    whole, parts = split
    ranks = [Digests(), Digests(), Digests()]
    for row, column, part in parts:
        chance.choice(ranks).add("w", part, row, column, whole.shape)
    total = Digests()
    for rank in ranks:
        total.merge(rank.as_dict())
    assert total.as_dict() == digests_of({"w": whole}) == {"w": digest_of(whole)}


def test_experts_are_rows_of_one_tensor():
    whole = tensor((4, 3, 5))
    digests = Digests()
    for expert in (2, 0, 3, 1):
        digests.add("w", whole[expert], first_row=3 * expert, shape=whole.shape)
    assert digests.as_dict() == digests_of({"w": whole})


@given(shapes, st.sampled_from(DTYPES), st.data())
def test_any_flipped_bit_is_seen(shape, dtype, data):
    whole = tensor(shape, dtype)
    sent = digests_of({"w": whole})
    bits = oracle.as_integers(whole).clone().view(-1)
    where = data.draw(st.integers(0, bits.numel() - 1))
    bits[where] ^= 1 << data.draw(st.integers(0, 8 * bits.element_size() - 2))
    with pytest.raises(RefitError, match=r"^1 of 1 .*: w has "):
        compare(sent, digests_of({"w": bits.view(dtype).view(shape)}))


FAULTS = {
    "negated": lambda x: -x,
    "a row negated": lambda x: torch.cat([x[:1], -x[1:2], x[2:]]),
    "two signs": lambda x: x * torch.tensor([[-1.0, 1, -1, 1, 1, 1, 1, 1]]).to(x.dtype),
    "two signs apart": lambda x: x * (1 - 2 * (torch.arange(48).view(6, 8) % 37 == 0).to(x.dtype)),
    "without signs": torch.abs,
    "rows in another order": lambda x: x.flip(0),
    "two rows": lambda x: x[[1, 0, 2, 3, 4, 5]],
    "columns in another order": lambda x: x.flip(1),
    "two columns": lambda x: x[:, [0, 1, 3, 2, 4, 5, 6, 7]],
    "neighbours": lambda x: x.view(-1, 2).flip(1).reshape(x.shape),
    "a row for another": lambda x: x[[0, 0, 2, 3, 4, 5]],
    "shifted": lambda x: x.view(-1).roll(1).view(x.shape),
    "zero": torch.zeros_like,
}
STEPS = [(1, -2, 1), (1, -1, -1, 1), (1, -1), (1, 1), (-1, 3, -3, 1), (2, 0, -2), (1, 0, 0, -1)]


@pytest.mark.parametrize("dtype", [*DTYPES[:3], torch.float64])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_other_signs_and_places_are_seen(fault, dtype):
    whole = (tensor((6, 8), torch.float32) * torch.tensor([1, -1] * 4)).to(dtype)
    with pytest.raises(RefitError, match=r"^1 of 1 .*: w has "):
        compare(digests_of({"w": whole}), digests_of({"w": fault(whole).contiguous()}))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("down", [False, True])
def test_small_steps_of_neighbours_are_seen(steps, dtype, down):
    """By so many units in the last place each, along a row or a column."""
    whole = tensor((8, 300), dtype)
    bits = oracle.as_integers(whole.clone())
    width = bits.shape[1] // whole.shape[1]
    for place in (0, 3, 2, 290):
        changed = bits.clone()
        if down:
            changed[: len(steps), place * width] += torch.tensor(steps, dtype=bits.dtype)
        else:
            changed[2, place * width :: width][: len(steps)] += torch.tensor(steps, dtype=bits.dtype)
        assert digests_of({"w": changed.view(dtype)}) != digests_of({"w": whole})


@given(
    st.sampled_from(DTYPES),
    st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 300)), st.integers(-3, 3).filter(bool), min_size=1),
)
def test_any_small_differences_are_seen(dtype, steps):
    whole = tensor((5, 301), dtype)
    bits = oracle.as_integers(whole).clone()
    for (row, column), step in steps.items():
        bits[row, column] += step
    assert digests_of({"w": bits.view(dtype)})["w"].number != digests_of({"w": whole})["w"].number


@given(st.sampled_from([torch.float32, torch.bfloat16]), st.sets(st.integers(0, 5 * 301 - 1), min_size=1))
def test_any_flipped_signs_are_seen(dtype, places):
    whole = tensor((5, 301), dtype)
    other = whole.clone()
    other.view(-1)[list(places)] *= -1
    assert digests_of({"w": other})["w"].number != digests_of({"w": whole})["w"].number


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.view(torch.float16),
        lambda x: x.view(torch.int16),
        lambda x: x.T.contiguous(),
        lambda x: x.view(4, 6),
        lambda x: x.view(2, 3, 4),
        lambda x: x.view(-1),
        lambda x: x.float(),
    ],
)
def test_the_same_bits_as_another_dtype_or_shape_are_seen(change):
    for whole in (tensor((6, 4)), torch.zeros(6, 4, dtype=torch.bfloat16)):
        with pytest.raises(RefitError, match=r"\bw .*\w+ \[.*\].* bfloat16 \[6, 4\]"):
            compare(digests_of({"w": whole}), digests_of({"w": change(whole)}))


def test_parts_of_unlike_wholes_are_refused():
    digests = Digests()
    digests.add("w", tensor((2, 4)), 0, 0, (4, 4))
    for other in (tensor((2, 4), torch.float16), tensor((2, 5))):
        with pytest.raises(RefitError, match=r"^w .*bfloat16 \[4, 4\] .*(float16 \[4, 4\]|bfloat16 \[4, 5\])"):
            digests.add("w", other, 2, 0, (4, other.shape[1]))


@pytest.mark.parametrize(("parts", "elements"), [([(0, 3)], 6), ([(0, 3), (3, 5), (0, 3)], 16)])
def test_a_part_left_out_or_counted_twice_is_seen_by_its_elements(parts, elements):
    whole = torch.zeros(5, 2)  # whose digest says nothing
    digests = Digests()
    for start, end in parts:
        digests.add("w", whole[start:end], start, shape=whole.shape)
    with pytest.raises(RefitError, match=rf"\bw .*\b10 .*\b{elements}\b"):
        compare(digests.as_dict(), digests_of({"w": whole}))


def test_a_message_says_what_is_wrong_with_each_parameter():
    weights = {name: tensor((2, 3), seed=i) for i, name in enumerate(("kept", "lost", "changed", "grown"))}
    other = {
        "kept": weights["kept"],
        "new": tensor((1,)),
        "changed": tensor((2, 3), seed=9),
        "grown": tensor((3, 3)),
    }
    with pytest.raises(RefitError) as error:
        compare(digests_of(weights), digests_of(other))
    text = str(error.value)
    assert has_line_naming(text, "4 of 5 parameters")
    assert has_line_naming(text, "lost … new … changed")
    assert has_line_naming(text, "grown … bfloat16 [3, 3] … bfloat16 [2, 3]")
    assert "kept" not in text


def test_a_long_message_shows_the_first_eight():
    sent = {f"w{i}": Digest(i, 1, "torch.int8", ()) for i in range(20)}
    with pytest.raises(RefitError, match=r"^20 of 20 .*\bw7 .*\b12 "):
        compare(sent, {})


digests_by_name = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.builds(
        Digest,
        st.integers(0, oracle.PRIME - 1),
        st.integers(0, 2**40),
        st.sampled_from(["torch.bfloat16", "torch.int8", "torch.float8_e4m3fn"]),
        st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    ),
    max_size=9,
)


@given(digests_by_name, st.none() | st.lists(st.text(max_size=9), max_size=4))
def test_digests_survive_the_journey(digests, names):
    unquantized = None if names is None else Unquantized("int8", tuple(names))
    encoded = encode(digests, unquantized)
    assert encoded.dtype == torch.uint8 and encoded.dim() == 1
    assert decode(encoded) == (digests, unquantized)


def test_the_encoded_length_does_not_depend_on_the_digests():
    assert len(encode({"w": Digest(0, 7, "torch.int8", (7,))})) == len(
        encode({"w": Digest(oracle.PRIME - 1, 7, "torch.int8", (7,))})
    )


def raw(content: bytes) -> torch.Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)


def row_bytes(fields: object) -> bytes:
    return json.dumps({"format": FORMAT, "digests": {"w": fields}, "left_alone": None}).encode()


def row(*fields: object) -> torch.Tensor:
    return raw(row_bytes(fields))


BAD = {
    "nothing": torch.empty(0, dtype=torch.uint8),
    "another dtype": torch.ones(3),
    "no vector": encode({}).unsqueeze(0),
    "no memory": encode({}).to("meta"),
    "no text": raw(b"\xff\xfe{"),
    "cut off": encode({"w": Digest(1, 2, "torch.int8", (2,))})[:-3],
    "a list": raw(b"[1, 2]"),
    "a number": raw(b"1"),
    "no format": raw(b'{"digests": {}, "left_alone": null}'),
    "a later format": raw(b'{"format": 4, "digests": {}, "left_alone": null}'),
    "a format that is no number": raw(b'{"format": true, "digests": {}, "left_alone": null}'),
    "a list for a format": raw(b'{"format": [3], "digests": {}, "left_alone": null}'),
    "no digests": raw(b'{"format": 3, "left_alone": null}'),
    "nothing of what is left alone": raw(b'{"format": 3, "digests": {}}'),
    "something else": raw(b'{"format": 3, "digests": {}, "left_alone": null, "more": 1}'),
    "no rows": raw(b'{"format": 3, "digests": [1], "left_alone": null}'),
    "a name twice": raw(b'{"format": 3, "digests": {}, "digests": {}, "left_alone": null}'),
    "a layer that is no name": raw(b'{"format": 3, "digests": {}, "left_alone": ["int8", [1]]}'),
    "a scheme alone": raw(b'{"format": 3, "digests": {}, "left_alone": ["int8"]}'),
    "layers without a scheme": raw(b'{"format": 3, "digests": {}, "left_alone": [null, []]}'),
    "deep": raw(b"[" * 100000),
    "a short row": row("00"),
    "a row of text": raw(b'{"format": 3, "digests": {"w": "abcd"}, "left_alone": null}'),
    "no hex": row("xyz", 1, "torch.int8", [1]),
    "a sign": row("-00000000000001f", 1, "torch.int8", [1]),
    "a large digest": row(f"{oracle.PRIME:016x}", 1, "torch.int8", [1]),
    "a digest that is a number": row(5, 1, "torch.int8", [1]),
    "elements below 0": row("0" * 16, -1, "torch.int8", [1]),
    "elements as text": row("0" * 16, "1", "torch.int8", [1]),
    "a dtype that is none": row("0" * 16, 1, "torch.bfloat61", [1]),
    "a dtype that is a list": row("0" * 16, 1, ["torch.int8"], [1]),
    "a shape that is a number": row("0" * 16, 1, "torch.int8", 1),
    "a shape of text": row("0" * 16, 1, "torch.int8", ["1"]),
    "a shape of truths": row("0" * 16, 1, "torch.int8", [True]),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bytes_that_are_no_digests_are_one_clear_error(bad):
    with pytest.raises(RefitError, match=line_naming(SENT, "the same ascend-quant")):
        decode(bad)


def test_an_older_sender_is_refused_by_its_format():
    older = raw(b'{"format": 2, "digests": {}}')
    with pytest.raises(RefitError, match=r"format 2\b.*\b3\b"):
        decode(older)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("0" * 16),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
messages = st.one_of(
    st.binary(max_size=200),
    values.map(lambda value: json.dumps(value).encode()),
    values.map(lambda value: json.dumps({"format": FORMAT, "digests": value, "left_alone": None}).encode()),
    values.map(lambda value: json.dumps({"format": FORMAT, "digests": {"w": value}, "left_alone": value}).encode()),
    st.lists(values, min_size=4, max_size=4).map(
        lambda fields: json.dumps({"format": FORMAT, "digests": {"w": fields}, "left_alone": None}).encode()
    ),
)


@given(messages)
def test_no_other_message_proves_anything(content):
    receiving = Receiving()
    with pytest.raises(RefitError):
        receiving.take([("w", tensor((2, 3))), (SENT, raw(content))])
        receiving.prove()


def test_a_changed_byte_of_the_message_proves_nothing():
    """Every byte, as every other byte."""
    (_, weight), (_, whole) = sending([("w", tensor((2, 3)))])
    for place, bits in itertools.product(range(len(whole)), range(1, 256)):
        message = whole.clone()
        message[place] ^= bits
        receiving = Receiving()
        with pytest.raises(RefitError):
            receiving.take([("w", weight), (SENT, message)])
            receiving.prove()


def test_digests_that_come_twice_are_refused():
    receiving = Receiving()
    receiving.take([(SENT, encode({}))])
    with pytest.raises(RefitError, match=line_naming(SENT)):
        receiving.take([(SENT, encode({}))])


WEIGHTS = {
    "embed": tensor((7, 4)),
    "norm": tensor((4,), torch.float32),
    "scale": tensor(()),
    "experts": tensor((2, 3, 4)),
    "half": tensor((4, 7), torch.float16).T,
    "empty": tensor((0, 4)),
}


def test_what_is_sent_in_any_buckets_is_proved():
    stream = list(sending(WEIGHTS.items()))
    assert [name for name, _ in stream] == [*WEIGHTS, SENT]
    assert all(sent is WEIGHTS[name] for name, sent in stream[:-1])
    random.Random(0).shuffle(stream)
    receiving, loaded = Receiving(), []
    for start in range(0, len(stream), 3):
        bucket = [(name, sent.clone()) for name, sent in stream[start : start + 3]]
        loaded += receiving.take(bucket)
        for _, sent in bucket:
            sent.zero_()  # the buffer goes back to the sender
    assert sorted(name for name, _ in loaded) == sorted(WEIGHTS)
    assert receiving.prove() == len(WEIGHTS)


def test_digests_are_taken_before_the_next_tensor_is_produced():
    buffer = torch.empty(3, 3)

    def weights():
        for i in range(4):
            yield f"w{i}", buffer.fill_(i)

    receiving = Receiving()
    for name, sent in sending(weights()):
        receiving.take([(name, sent.clone())])
    assert receiving.prove() == 4


def test_a_sync_without_digests_is_an_error():
    receiving = Receiving()
    receiving.take(list(WEIGHTS.items()))
    with pytest.raises(RefitError, match=line_naming(SENT, "ascend_quant.transfer.checksums.sending")):
        receiving.prove()


def test_without_a_proof_nothing_is_taken_out():
    receiving = Receiving(wanted=False)
    assert [name for name, _ in receiving.take(list(sending(WEIGHTS.items())))] == [*WEIGHTS, SENT]
    assert receiving.prove() == 0


def test_gradients_do_not_matter():
    (_, sent), (_, encoded) = sending([("w", torch.nn.Parameter(tensor((3, 2))))])
    assert sent.requires_grad and decode(encoded).digests == digests_of({"w": sent.detach()})


W = tensor((2, 3))
FREED = W.clone()
FREED.untyped_storage().resize_(0)


@pytest.mark.parametrize(
    "junk", [None, [1.0], W.to("meta"), W.to_sparse(), torch.nested.nested_tensor([W, W]), FREED], ids=lambda one: ""
)
def test_what_is_no_tensor_is_named_on_both_sides(junk):
    for name in ("w", SENT):
        with pytest.raises(RefitError, match=rf"^{name}: got "):
            Receiving().take([("v", W), (name, junk)])
    with pytest.raises(RefitError, match=r"^w: got "):
        list(sending([("v", W), ("w", junk)]))
    with pytest.raises(RefitError, match=line_naming(3, "pairs")):
        Receiving().take([(3, W)])


def test_signs_that_are_in_no_memory_count():
    """A view with the negative bit, a conjugate: what travels is their values."""
    pairs = torch.view_as_complex(tensor((2, 3, 2), torch.float32))
    views = {"neg": torch._neg_view(W), "conj": pairs.conj()}
    plain = {"neg": -W, "conj": pairs.conj().resolve_conj()}
    assert digests_of(views) == digests_of(plain) != digests_of({"neg": W, "conj": pairs})


UNQUANTIZED = Unquantized("int8", ("layers.0.mlp.experts", "layers.3.mlp.gate_up_proj"))


@pytest.mark.parametrize(
    ("trainer", "engine", "differ"),
    [
        (UNQUANTIZED, UNQUANTIZED, ()),
        (None, UNQUANTIZED, ()),  # no fake quantization
        (UNQUANTIZED, Unquantized("bf16"), ()),  # which the run's settings allow, with a warning
        (UNQUANTIZED, None, ()),
        (UNQUANTIZED, Unquantized("int8"), UNQUANTIZED.names),
        (Unquantized("int8"), UNQUANTIZED, UNQUANTIZED.names),
        (
            UNQUANTIZED,
            Unquantized("int8", (UNQUANTIZED.names[0], "layers.4.mlp.gate_up_proj")),
            ("layers.3.", "layers.4."),
        ),
    ],
)
def test_a_sync_between_sides_that_leave_other_layers_alone_is_refused(trainer, engine, differ):
    receiving = Receiving(unquantized=engine)
    receiving.take(list(sending(WEIGHTS.items(), trainer)))
    if not differ:
        assert receiving.prove() == len(WEIGHTS)
        return
    with pytest.raises(RefitError) as raised:
        receiving.prove()
    assert all(part in str(raised.value) for part in (*differ, trainer.digest, engine.digest))
    shared = {*trainer.names} & {*engine.names}
    assert not any(name in str(raised.value) for name in shared)
