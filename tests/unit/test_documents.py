"""The reader of JSON and YAML: it takes what was written, and an error names the file, and the line and the key."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ascend_quant.files.documents import BadDocument, parse_json, parse_yaml, read_json, read_yaml

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("abé: -#'\n", max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abé:", max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(TREES)
def test_what_is_written_is_read(tree):
    assert parse_json(json.dumps(tree), "one") == tree
    assert parse_yaml(yaml.safe_dump(tree, allow_unicode=True), "one") == tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-6", 1e-6), ("5.e3", 5e3), ("16", 16), ("1.2.3", "1.2.3"), ("yes", True), ("", None)),
        *(("[0, -0.5, 0e3, 0.]", [0, -0.5, 0.0, 0.0]), ("['010', host:80]", ["010", "host:80"])),
        *(("{a: &x [1], b: *x}", {"a": [1], "b": [1]}), ("{<<: {a: 1}, a: 2}", {"a": 2})),
    ],
)
def test_yaml(text, value):
    assert parse_yaml(text, "one") == value


@pytest.mark.parametrize(
    "number", ["010", "-010", "1:30", "+1:30:00", "1:30.5", "0x10", "0b11", "1_000", "1_0.5", "!!int '010'", "{010: 1}"]
)
def test_numbers_that_only_yaml_1_1_reads_are_refused_and_may_be_secrets(number):
    with pytest.raises(BadDocument, match="line 2") as raised:
        parse_yaml(f"a: 1\nb: {number}", "one")
    assert number not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("one.yaml", b"a: 1\nb: [", ("line 2",)),
        ("one.yaml", b"rollout: {n: 4}\nother: 1\nrollout: {n: 8}", ("'rollout'", "line 3")),
        ("one.yaml", b"a:\n  n: 4\n  n: 8", ("'n'", "line 3")),
        ("one.yaml", b"a: 1\nb: !!python/object/apply:os.system ['true']", ("python", "line 2")),
        ("one.yaml", b"- 1", ("list",)),
        ("one.yaml", b"a: \xff", ()),
        ("one.json", b'{"a": 1,\n "b": }', ("line 2",)),
        ("one.json", b"[1]", ("list",)),
        ("one.json", b"[" * 100_000, ()),
        ("none.json", None, ()),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path, name, content, named):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadDocument) as raised:
        (read_yaml if file.suffix == ".yaml" else read_json)(file)
    said = str(raised.value)
    assert said.startswith(str(file)) and all(word in said for word in named) and "\n" not in said
