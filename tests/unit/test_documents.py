"""The one reader of JSON and YAML: what it takes is what the usual readers take; what misleads is refused."""

import json
import os
import re
from functools import reduce
from threading import Timer

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ascend_quant.documents import MAX_DEPTH, BadDocument, parse_json, parse_yaml, read_json, read_yaml

LIKE_A_NUMBER = re.compile(r"[-+]?[.0-9][\w.:+-]*")  # not all of which PyYAML quotes when it writes: 08, 1e5
TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029\ufeff", exclude_categories=["Cc"])
).filter(lambda text: not LIKE_A_NUMBER.fullmatch(text))
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
BOMB = "\n".join([f"a0: &a0 [{'x, ' * 9}x]"] + [f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}*a{i - 1}]" for i in range(1, 10)])


@given(TREES)
def test_what_is_written_is_read(tree):
    assert parse_json(json.dumps(tree), "one") == tree
    assert parse_yaml(yaml.safe_dump(tree, allow_unicode=True), "one") == tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-6", 1e-6), ("-.5", -0.5), ("16", 16), ("'010'", "010"), ("2024-01-01", "2024-01-01"), ("yes", True)),
        *(("{a: &x [1], b: *x}", {"a": [1], "b": [1]}), ("{<<: {a: 1}, b: 2}", {"a": 1, "b": 2}), ("", None)),
        *((same, same) for same in ("1.2.3", "0.10.1", "=", "8a", "192.0.2.1")),
    ],
)
def test_yaml(text, value):
    assert parse_yaml(text, "one") == value


@pytest.mark.parametrize("text", ["010", "1:30", "0x10", "0b100", "1_6", "-0o7", "[a, {b: 1_000.5}]", "9" * 50])
def test_numbers_that_are_others_than_they_look(text):
    with pytest.raises(BadDocument, match="one"):
        parse_yaml(text, "one")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rollout: {n: 4}\nother: 1\nrollout: {n: 8}", ("rollout", "1", "3")),
        ("a: {n: 4, n: 8}", ("n",)),
        ("on: 1", ("on",)),
        ("null: 1", ("null",)),
        ("{[1]: 2}", ("1",)),
        ("!!binary //79", ("binary",)),
        ("!!python/object/apply:os.system ['true']", ("python",)),
        ("a: !!set {x}", ("set",)),
        ("a: !!bool x", ("x",)),
        ("a: !!map [1]", ()),
        ("? [" + "x, " * 300 + "]\n: 1", ("no text",)),
        ("- 1\n" * 100_000, ("letters",)),
        ("&a [*a]", ("1",)),
        ("&a {b: {c: *a}}", ("1",)),
        (BOMB, ("nodes",)),
        ("[" * 3000, (str(MAX_DEPTH),)),
        ("[" * 100 + "]" * 100, (str(MAX_DEPTH),)),
        ("a: [", ()),
        ("a\n---\nb", ()),
        ('"\\ud800"', ()),
    ],
)
def test_yaml_that_misleads(text, words):
    with pytest.raises(BadDocument) as raised:
        parse_yaml(text, "one.yaml")
    assert str(raised.value).startswith("one.yaml") and all(word in str(raised.value) for word in words)
    assert len(str(raised.value)) < 500 and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "[" * 100 + "]" * 100,
        '{"a": 1, "a": 2}',
        f'{{{"".join(f"{json.dumps(str(key))}: 1, " for key in range(200_000))}"199999": 2}}',  # in its last key
        "9" * 5000,
        '"\\ud800"',
        '{"\\udfff": 1}',
        "nope",
    ],
)
def test_json_that_misleads(text):
    with pytest.raises(BadDocument) as raised:
        parse_json(text, "one.json")
    assert str(raised.value).startswith("one.json") and len(str(raised.value)) < 500


def test_levels_up_to_the_limit_are_taken():
    tree = reduce(lambda inner, _: [inner], range(MAX_DEPTH - 1), [])
    assert parse_json(json.dumps(tree), "one") == parse_yaml(json.dumps(tree), "one") == tree


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = Timer(2, lambda: (tmp_path / "pipe").write_text("{}"))  # or this test would be
    writer.start()
    try:
        with pytest.raises(BadDocument, match="pipe"):
            read_json(tmp_path / "pipe")
    finally:
        writer.cancel()


@pytest.mark.parametrize("read", [read_json, read_yaml])
@pytest.mark.parametrize("content", [b"\xff{}", b"[]", b"1", b"null", None])
def test_files(tmp_path, read, content):
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadDocument, match="file"):
        read(file)
    with pytest.raises(BadDocument, match=tmp_path.name):
        read(tmp_path)
    file.write_text('{"a": {"b": [1, 2.5, "\u00e9", true, null]}}', encoding="utf-8")
    assert read(file) == {"a": {"b": [1, 2.5, "\u00e9", True, None]}}
