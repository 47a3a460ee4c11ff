"""Prompts: every kind of file, what is wrong with one, and what becomes token ids."""

import json

import pytest
from naming import has_line_naming, line_naming

from ascend_quant.mismatch.prompts import PromptError, built_in, evenly, read
from ascend_quant.mismatch.tokens import ModelError, encode, load_config, load_tokenizer, stop_tokens, vocabulary_of

CHAT = [{"role": "user", "content": "1+2="}]


def test_text_has_a_prompt_a_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text('one\n\n  two, 二 \r\n{"prompt": 3}\nfo\u2028ur\n', encoding="utf-8", newline="")
    assert read(path) == ["one", "  two, 二 ", '{"prompt": 3}', "fo\u2028ur"]


def test_json_lines_hold_strings_chats_or_token_ids(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = ["a string", CHAT, [3, 1, 2]]
    path.write_text("\n".join(json.dumps({"prompt": row, "answer": 7}) for row in rows))
    assert read(path) == rows


def test_parquet_as_verl_writes_it(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "prompts.parquet"
    pandas.DataFrame([{"prompt": CHAT, "extra_info": {"index": i}} for i in range(3)]).to_parquet(path)
    assert read(path) == [CHAT] * 3
    pandas.DataFrame([{"question": "1+2="}]).to_parquet(path)
    with pytest.raises(PromptError, match=r"no column 'prompt'; its columns: question"):
        read(path)
    path.write_text("text")
    with pytest.raises(PromptError, match=r"prompts.parquet: "):
        read(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.txt", "\n \n", "holds no prompt"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt"', "line 2.* is no JSON"),
        ("p.jsonl", '{"question": "a"}', "line 1: has no 'prompt'"),
        ("p.jsonl", '["a"]', "line 1: has no 'prompt'"),
        ("p.jsonl", '{"prompt": ""}', "line 1: 'prompt' is ''"),
        ("p.jsonl", '{"prompt": [1, -1]}', "line 1: 'prompt' is"),
        ("p.jsonl", '{"prompt": [true]}', "line 1: 'prompt' is"),
        ("p.jsonl", '{"prompt": [{"role": "user"}]}', "line 1: 'prompt' is"),
        ("p.jsonl", '{"prompt": 7}', "line 1: 'prompt' is 7"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(PromptError, match=rf"{name}.*{message}"):
        read(tmp_path / name)


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "p.txt").write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(PromptError, match=r"p\.txt .*a text in UTF-8 is wanted"):
        read(tmp_path / "p.txt")
    with pytest.raises(PromptError, match=line_naming("absent.txt")):
        read(tmp_path / "absent.txt")
    with pytest.raises(PromptError, match=r"x{100}"):
        read(tmp_path / ("x" * 5000))


def test_taken_evenly():
    assert evenly(range(5), 9) == [0, 1, 2, 3, 4]
    assert evenly(range(100), 4) == [0, 25, 50, 75]
    assert evenly(range(7), 3) == [0, 2, 4]


def test_built_in_prompts_are_chats_of_two_languages():
    texts = [message["content"] for chat in built_in() for message in chat]
    assert len(texts) == len(set(texts)) == 16
    assert sum(any("\u4e00" <= letter <= "\u9fff" for letter in text) for text in texts) == 8


@pytest.fixture(scope="module")
def tokenizer():
    pytest.importorskip("transformers")
    from launch.demo.model import build_tokenizer

    return build_tokenizer()


def test_prompts_become_token_ids(tokenizer):
    one, two, plus, equals = (tokenizer.convert_tokens_to_ids(token) for token in "12+=")
    assert encode(["1+2=", CHAT, [5, 6]], tokenizer, 20, seed=0) == [[one, plus, two, equals]] * 2 + [[5, 6]]
    assert all(encode(None, tokenizer, 20, seed=0))


def test_prompts_that_this_model_cannot_be_asked(tokenizer):
    with pytest.raises(PromptError, match="no token"):
        encode(["abc"], tokenizer, 20, seed=0)
    with pytest.raises(PromptError, match=line_naming("token id 20", "vocabulary of 20")):
        encode([[3, 20]], tokenizer, 20, seed=0)
    with pytest.raises(PromptError, match=r"'1\+2='.*no tokenizer"):
        encode(["1+2="], None, 20, seed=0)
    template, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        with pytest.raises(PromptError, match="no chat template"):
            encode([CHAT], tokenizer, 20, seed=0)
        assert all(encode(None, tokenizer, 20, seed=0)), "built-in prompts are plain text then"
    finally:
        tokenizer.chat_template = template


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{% for %}", "{{ messages[0].content + 1 }}", "{{ 1 // 0 }}"]
)
def test_a_chat_template_that_fails(tokenizer, monkeypatch, template):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(PromptError, match="fails") as error:
        encode([CHAT], tokenizer, 20, seed=0)
    assert len(str(error.value)) < 1000


def test_a_tokenizer_of_a_larger_vocabulary(tokenizer):
    with pytest.raises(PromptError, match="vocabulary of 3"):
        encode(["1+2="], tokenizer, 3, seed=0)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(("config.json", text) for text in ("null", "[]", "[" * 100_000, "{", '{"model_type": ["qwen2"]}')),
        *(
            ("config.json", json.dumps({"model_type": "qwen2", **changes}))
            for changes in (
                *({"vocab_size": value} for value in (0, -5, "20", None, [20])),
                *({"eos_token_id": value} for value in ("a", [[1]], -1, True)),
                {"hidden_size": "64"},
                {"text_config": "qwen2"},
            )
        ),
        ("generation_config.json", "[]"),
        ("generation_config.json", '{"eos_token_id": "two"}'),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "null"),
        ("tokenizer_config.json", "[]"),
    ],
)
def test_a_model_folder_of_the_wrong_kinds(tmp_path, tokenizer, file, text):
    """Read, or refused in a line: nothing else comes out, and a wrong end of a response is no number by chance."""
    from transformers import Qwen2Config

    tokenizer.save_pretrained(tmp_path)
    Qwen2Config(vocab_size=20, eos_token_id=2).save_pretrained(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ModelError) as error:
        config = load_config(str(tmp_path))
        assert type(vocabulary_of(str(tmp_path), config)) is int
        stop_tokens(str(tmp_path), config, load_tokenizer(str(tmp_path)))
    assert len(str(error.value)) < 2000 and "\n" not in str(error.value)


def test_a_model_without_tokenizer_is_asked_random_tokens_and_told_so(caplog):
    caplog.set_level("WARNING", logger="ascend_quant")  # whoever was imported before may have raised the root's
    found = encode(None, None, 20, seed=1)
    assert has_line_naming(caplog.text, "no tokenizer", "random tokens")
    assert len(found) == 16 and {token for ids in found for token in ids} == set(range(20))
    assert encode(None, None, 20, seed=1) == found != encode(None, None, 20, seed=2)


def test_what_is_read_from_a_model_folder(tmp_path, tokenizer):
    with pytest.raises(ModelError, match=line_naming(tmp_path, "configuration")):
        load_config(str(tmp_path))
    from transformers import GenerationConfig, Qwen2Config

    Qwen2Config(eos_token_id=5).save_pretrained(tmp_path)
    config = load_config(str(tmp_path))
    assert load_tokenizer(str(tmp_path)) is None
    assert stop_tokens(str(tmp_path), config, None) == [5]
    tokenizer.save_pretrained(tmp_path)
    GenerationConfig(eos_token_id=[7, 5]).save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert stop_tokens(str(tmp_path), config, loaded) == sorted({5, 7, tokenizer.eos_token_id})
