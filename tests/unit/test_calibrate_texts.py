"""Calibration texts: what is read from each kind of file, and how it becomes samples."""

import json

import pytest
import torch
from naming import line_naming

pytest.importorskip("transformers", reason="transformers is not installed")
import calibrate_cases as cases

from ascend_quant.convert import texts
from ascend_quant.documents import BadDocument
from ascend_quant.profile.checkpoints import BadCheckpoint

CHAT = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]


def json_lines(path, *rows: object):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


def ids(text: str) -> list[int]:
    """Token ids by hand; characters that the vocabulary has not are token 0."""
    return [cases.VOCABULARY.index(one) if one in cases.VOCABULARY else 0 for one in text]


def test_texts_of_a_text_file_are_parted_by_blank_lines(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n1+1=2\n2+2=4\n \n\n3+3=6")
    assert list(texts.read(tmp_path / "a.txt")) == ["1+1=2\n2+2=4\n", "3+3=6"]


@pytest.mark.parametrize("column", texts.COLUMNS)
def test_rows_of_json_lines_are_strings_or_chats_and_empty_ones_are_left_out(column, tmp_path):
    rows = [{"id": 0, column: value} for value in ("1+1=2", "", None, " \n", CHAT, [])]
    assert list(texts.read(json_lines(tmp_path / "a.jsonl", *rows, {"id": 1}))) == ["1+1=2", CHAT]


def test_rows_of_parquet(tmp_path):
    """As verl's data sets are: a column of chats among others."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"data_source": ["x"] * 3, "prompt": [CHAT, [], CHAT[:1]]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert list(texts.read(tmp_path / "a.parquet")) == [CHAT, CHAT[:1]]


def test_samples_are_the_texts_one_after_the_other(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", {"text": "12+3=15"}, {"text": "4+4=8"}, {"text": CHAT})
    whole = [*ids("12+3=15"), 1, *ids("4+4=8"), 1, *ids("user:1+1=\nassistant:2\n")]
    found = texts.pack(path, cases.tokenizer(), 4, 7)
    assert found.dtype == torch.int64 and found.tolist() == [whole[i : i + 7] for i in range(0, 28, 7)]


def test_no_more_is_read_than_is_needed(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", {"text": "12+3=15"}, {"text": "no number"}, {"text": 5})
    assert texts.pack(path, cases.tokenizer(), 1, 8).tolist() == [[*ids("12+3=15"), 1]]
    with pytest.raises(BadCheckpoint, match=line_naming("row 3: 5")):
        texts.pack(path, cases.tokenizer(), 10, 8)


def test_too_little_text_says_what_it_is_enough_for(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", *({"text": "123456789"} for _ in range(3)))
    with pytest.raises(BadCheckpoint, match=line_naming("30 tokens", "3 samples of 9", 4, "--samples 3")):
        texts.pack(path, cases.tokenizer(), 4, 9)
    with pytest.raises(BadCheckpoint, match=line_naming("0 samples of 31", 1, "--seq-len")):
        texts.pack(path, cases.tokenizer(), 1, 31)


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.csv", b"text\nhello\n", ".txt, .jsonl, .parquet"),
        ("a.txt", b"\xff\xfe\x00", "no text in UTF-8"),
        ("a.jsonl", b'{"text": ""}\n', "no text in it"),
        ("a.jsonl", b'{"text": "x"}\n{"text"', "line 2, is no JSON"),
        ("a.jsonl", b'["x"]\n', "line 1: is no object"),
        ("a.jsonl", b'{"body": "x", "id": 1}\n', "columns text, messages, prompt; .* body, id"),
        ("a.jsonl", b'{"text": [{"content": "x"}]}\n', "row 1: "),
        ("a.parquet", b"PAR1", "a.parquet: "),
        ("b.txt", None, "No such file"),
    ],
)
def test_what_cannot_be_read_is_said(name, content, said, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((BadCheckpoint, BadDocument), match=said) as error:
        texts.pack(tmp_path / name, cases.tokenizer(), 1, 4)
    assert str(tmp_path / name) in str(error.value)


def test_chats_need_a_template_that_does_not_fail(tmp_path):
    tokenizer = cases.tokenizer()
    path = json_lines(tmp_path / "a.jsonl", {"text": [{"role": "user", "content": None}]})
    for template in (None, "{{ raise_exception('no') }}", "{% for %}", "{{ messages[0].content + 'a' }}"):
        tokenizer.chat_template = template
        with pytest.raises(BadCheckpoint, match="chat template"):
            texts.pack(path, tokenizer, 1, 4)


def test_a_tokenizer_that_cannot_be_read_or_is_not_there_is_named(tmp_path):
    cases.tokenizer().save_pretrained(tmp_path / "spoilt")
    for name, content in (("tokenizer.json", "{}"), ("tokenizer.json", "["), ("tokenizer_config.json", "null")):
        cases.tokenizer().save_pretrained(tmp_path / "spoilt")
        (tmp_path / "spoilt" / name).write_text(content)
        with pytest.raises(BadCheckpoint, match="tokenizer"):
            texts.open_tokenizer(tmp_path / "spoilt")
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(BadCheckpoint, match="no tokenizer"):
        texts.open_tokenizer(tmp_path)
