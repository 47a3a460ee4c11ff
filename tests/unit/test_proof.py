"""The proof: digests of parts add up however a tensor is cut, any change is seen, and a message says what and where."""

import itertools
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ascend_quant import oracle, proof
from ascend_quant.proof import SENT, Digests, Receiving, compare, decode, encode, sending
from ascend_quant.refit import RefitError

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int8)
shapes = st.tuples(st.integers(1, 9), st.integers(1, 9))


def tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Random values, all positive, so that any flipped bit is another value."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 100 + 1).to(dtype)


def digests_of(weights: dict[str, torch.Tensor]) -> dict[str, proof.Digest]:
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
        chance.choice(ranks).add("w", part, row, column)
    total = Digests()
    for rank in ranks:
        total.merge(rank.as_dict())
    assert total.as_dict() == digests_of({"w": whole}) == {"w": (oracle.digest(whole), whole.numel())}


def test_experts_are_rows_of_one_tensor():
    whole = tensor((4, 3, 5))
    digests = Digests()
    for expert in (2, 0, 3, 1):
        digests.add("w", whole[expert], first_row=3 * expert)
    assert digests.as_dict() == digests_of({"w": whole})


@given(shapes, st.sampled_from(DTYPES), st.data())
def test_any_flipped_bit_is_seen(shape, dtype, data):
    whole = tensor(shape, dtype)
    sent = digests_of({"w": whole})
    bits = oracle.as_integers(whole).clone().view(-1)
    where = data.draw(st.integers(0, bits.numel() - 1))
    bits[where] ^= 1 << data.draw(st.integers(0, 8 * bits.element_size() - 2))
    with pytest.raises(RefitError, match="w has other values"):
        compare(sent, digests_of({"w": bits.view(dtype).view(shape)}))


def test_elements_that_changed_places_are_seen():
    whole = tensor((6, 4))
    for other in (whole.flip(0), whole.flip(1), whole.view(4, 6), whole.T.contiguous()):
        with pytest.raises(RefitError, match="w has other values"):
            compare(digests_of({"w": whole}), digests_of({"w": other}))


@pytest.mark.parametrize(("parts", "elements"), [([(0, 3)], 6), ([(0, 3), (3, 5), (0, 3)], 16)])
def test_a_part_left_out_or_counted_twice_is_seen_by_its_elements(parts, elements):
    whole = torch.zeros(5, 2)  # whose digest says nothing
    digests = Digests()
    for start, end in parts:
        digests.add("w", whole[start:end], start)
    with pytest.raises(RefitError, match=f"w has 10 elements, {elements} were sent"):
        compare(digests.as_dict(), digests_of({"w": whole}))


def test_the_dtype_as_sent_counts():
    whole = tensor((3, 3))
    with pytest.raises(RefitError, match="other values"):
        compare(digests_of({"w": whole}), digests_of({"w": whole.float()}))


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
    assert text.startswith("4 of 5 parameters did not arrive as the trainer sent them: ")
    assert "lost is missing; new was never sent; changed has other values than were sent" in text
    assert "grown has 9 elements, 6 were sent. " in text
    assert "kept" not in text


def test_a_long_message_shows_the_first_eight():
    sent = {f"w{i}": (i, 1) for i in range(20)}
    with pytest.raises(RefitError, match=r"^20 of 20 .*w7 is missing; and 12 more\."):
        compare(sent, {})


@given(st.dictionaries(st.text(max_size=20), st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40)), max_size=9))
def test_digests_survive_the_journey(digests):
    encoded = encode(digests)
    assert encoded.dtype == torch.uint8 and encoded.dim() == 1
    assert decode(encoded) == digests


def test_the_encoded_length_does_not_depend_on_the_digests():
    assert len(encode({"w": (0, 7)})) == len(encode({"w": (2**64 - 1, 7)}))


def raw(content: bytes) -> torch.Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)


BAD = {
    "nothing": torch.empty(0, dtype=torch.uint8),
    "another dtype": torch.ones(3),
    "no text": raw(b"\xff\xfe{"),
    "cut off": encode({"w": (1, 2)})[:-3],
    "a list": raw(b"[1, 2]"),
    "no format": raw(b'{"digests": {}}'),
    "another format": raw(b'{"format": 2, "digests": {}}'),
    "no digests": raw(b'{"format": 1}'),
    "no rows": raw(b'{"format": 1, "digests": [1]}'),
    "a short row": raw(b'{"format": 1, "digests": {"w": ["00"]}}'),
    "no number": raw(b'{"format": 1, "digests": {"w": ["xyz", 1]}}'),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bytes_that_are_no_digests_are_one_clear_error(bad):
    with pytest.raises(RefitError, match=f"{SENT} cannot be read .*install the same ascend-quant"):
        decode(bad)


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
    with pytest.raises(RefitError, match=f"{SENT}. never came"):
        receiving.prove()


def test_without_a_proof_nothing_is_taken_out():
    receiving = Receiving(wanted=False)
    assert [name for name, _ in receiving.take(list(sending(WEIGHTS.items())))] == [*WEIGHTS, SENT]
    assert receiving.prove() == 0


def test_gradients_do_not_matter():
    (_, sent), (_, encoded) = sending([("w", torch.nn.Parameter(tensor((3, 2))))])
    assert sent.requires_grad and decode(encoded) == digests_of({"w": sent.detach()})
