"""`ascend-quant mismatch` without engines: its options, its prompts, and the report of what engines would give."""

import json
import math
from pathlib import Path

import pytest
from naming import has_line_naming, line_naming
from typer import Typer
from typer.testing import CliRunner

from ascend_quant.commands.mismatch import mismatch
from ascend_quant.files.documents import BadDocument
from ascend_quant.mismatch import engines, measure, prompts
from ascend_quant.mismatch.measure import Settings
from ascend_quant.mismatch.prompts import EXAMPLES, Vocabulary, encode, evenly, read
from ascend_quant.profile.checkpoints import BadCheckpoint

app = Typer()
app.command()(mismatch)

CHAT = [{"role": "user", "content": "1+2="}]
SHIFT = {"mismatch": 0.12, "weights": 0.1, "cache": 0.05}  # what each policy's log-probabilities lie above bf16's


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scheme", "int9"), ("int9", "int8")),
        (("--scheme", "int8", "--kv-cache", "int4"), ("--kv-cache 'int4'", "fp8")),
        (("--scheme", "int8"), ("'some-model'",)),
    ],
)
def test_wrong_use_ends_with_2_and_one_line(options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["some-model", *options])
    assert ended.exit_code == 2
    assert has_line_naming(ended.stderr, *words) and len(ended.stderr.strip().splitlines()) <= 3


def test_every_kind_of_prompt_file(tmp_path):
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows = ["a string", CHAT, [3, 1, 2]]
    text, lines, table = (tmp_path / name for name in ("p.txt", "p.jsonl", "p.parquet"))
    text.write_text('one\n\n  two, 二 \r\n{"prompt": 3}\nfo\u2028ur\n', encoding="utf-8", newline="")
    lines.write_text("\n".join(json.dumps({"prompt": row, "answer": 7}) for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist([{"prompt": CHAT, "index": i} for i in range(3)]), table)
    assert read(text) == ["one", "  two, 二 ", '{"prompt": 3}', "fo\u2028ur"]
    assert read(lines) == rows and read(table) == [CHAT] * 3
    parquet.write_table(pyarrow.table({"question": ["1+2="]}), table)
    with pytest.raises(BadCheckpoint, match=line_naming("p.parquet", "prompt", "question")):
        read(table)
    assert evenly(range(100), 4) == [0, 25, 50, 75] and evenly(range(5), 9) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.txt", b"\n \n", ()),
        ("p.txt", b"PAR1\xff\xfe", ()),
        ("p.parquet", b"text", ()),
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt"', ("line 2",)),
        *(
            ("p.jsonl", json.dumps(row).encode(), ("prompt",))
            for row in (
                {"question": "a"},
                ["a"],
                *({"prompt": one} for one in ("", 7, [1, -1], [True], [{"role": "u"}])),
            )
        ),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    for file, named in ((name, words), (f"absent{Path(name).suffix}", ())):
        with pytest.raises((BadCheckpoint, BadDocument), match=line_naming(file, *named)):
            read(tmp_path / file)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with a configuration and a tokenizer; no engine starts on it."""
    transformers = pytest.importorskip("transformers")
    from ascend_quant.demo.task import save_tokenizer

    folder = tmp_path_factory.mktemp("model")
    transformers.Qwen2Config(vocab_size=20, eos_token_id=2).save_pretrained(folder)
    transformers.GenerationConfig(eos_token_id=[7, 2]).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def test_prompts_become_token_ids(model):
    found = prompts.load(str(model))
    assert found.size == 20 and found.stop == sorted({2, 7, found.tokenizer.eos_token_id})
    one, two, plus, equals = (found.tokenizer.convert_tokens_to_ids(token) for token in "12+=")
    assert encode(["1+2=", CHAT, [5, 6]], found) == [[one, plus, two, equals]] * 2 + [[5, 6]]
    assert len(encode(None, found)) == len(EXAMPLES) and all(encode(None, found))
    for prompt, words in (("abc", ("abc", "no token")), ([3, 20], ("20", "token id"))):
        with pytest.raises(BadCheckpoint, match=line_naming(*words)):
            encode([prompt], found)
    with pytest.raises(BadCheckpoint, match=line_naming("3")):
        encode(["1+2="], Vocabulary(3, [], found.tokenizer))
    for found.tokenizer.chat_template in (None, "{{ raise_exception('no') }}", "{% for %}", "{{ 1 // 0 }}"):
        with pytest.raises(BadCheckpoint):
            encode([CHAT], found)
    found.tokenizer.chat_template = None
    assert all(encode(None, found)), "built-in prompts are plain text then"


def test_a_model_without_tokenizer_is_asked_random_tokens_and_told_so(caplog):
    caplog.set_level("WARNING", logger="ascend_quant")  # whoever was imported before may have raised the root's
    found = encode(None, Vocabulary(20, [], None))
    assert has_line_naming(caplog.text, "no tokenizer", "random tokens")
    assert len(found) == 16 and {token for ids in found for token in ids} == set(range(20))
    with pytest.raises(BadCheckpoint, match=line_naming("1+2=")):
        encode(["1+2="], Vocabulary(20, [], None))


def test_what_is_asked(model, tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(["1", "2", "3", "4+4", "5", "6"]))
    asked = measure.ask(Settings(str(model), "int8", path, max_tokens=10, tokens=39))
    assert [len(prompt) for prompt in asked.prompts] == [1, 1, 1]  # the 1st, 3rd and 5th
    assert (asked.left_out, asked.length) == (3, 12)


class Engines:
    """Takes the place of `engines.run`: every policy's tokens have log-probabilities of its own, bf16's are -1."""

    def __init__(self):
        self.tasks: list[engines.Task] = []

    def run(self, task: engines.Task) -> dict:
        self.tasks.append(task)
        shift = 0.01 if task.sequences else list(SHIFT.values())[len(self.tasks) - 1]
        sampled = [{"prompt": one, "response": [1] * 40, "rollout": [shift - 1.0] * 40} for one in task.prompts]
        scored = {name: [[-1.0] * 40] * len(sequences) for name, sequences in task.sequences.items()}
        seen = {"name": "a.b", "error": [1e-4], "norm": [1.0], "extra_bytes": 7}
        return {
            "sampled": sampled,
            "scored": scored,
            "rescored": [[-1.0] * 40] * len(sampled),
            "layers": [[seen]] if task.watched else [],
            "machine": {"device": "d", "vllm": "v", "torch": "t"},
        }


def of(task: engines.Task) -> tuple:
    quantization = task.engine["hf_overrides"]["quantization_config"]
    return quantization["scheme"], quantization.get("kv_cache"), quantization["ignore"]


def test_the_engines_differ_in_scheme_and_cache_alone_and_each_part_is_its_own(model, monkeypatch):
    monkeypatch.setattr(engines, "run", (fake := Engines()).run)
    options = "--scheme", "int8", "--kv-cache", "fp8", "--ignore", "a", "--tp", "2", "--gpu-memory-utilization", "0.5"
    wide = {"COLUMNS": "160", "LINES": "99"}  # both, or a dumb terminal has 80
    ended = CliRunner().invoke(app, [str(model), *options, "--json", "--fail-above", "1e-3"], env=wide)
    assert ended.exit_code == 3 and has_line_naming(ended.stderr, "--fail-above")
    report = json.loads(ended.stdout)
    assert list(map(of, fake.tasks)) == [
        ("int8", "fp8", ["a"]), ("int8", None, ["a"]), ("bf16", "fp8", ["a"]), ("bf16", None, ["a"])
    ]  # fmt: skip
    *rollouts, reference = fake.tasks
    engine = [{key: value for key, value in task.engine.items() if key != "hf_overrides"} for task in fake.tasks]
    assert engine[3].pop("worker_extension_cls") == measure.EXTENSION and engine[1:] == engine[:1] * 3
    assert (engine[0]["tensor_parallel_size"], engine[0]["gpu_memory_utilization"]) == (2, 0.5)
    assert all(task.prompts == rollouts[0].prompts and not task.sequences for task in rollouts)
    assert list(reference.sequences) == list(SHIFT) and reference.prompts == rollouts[0].prompts[::2]
    total = sum(len(prompt) + 40 for prompt in rollouts[0].prompts)
    assert (reference.watched, reference.every) == ("int8", math.ceil(total / 512))
    found = {"mismatch": report["mismatch"], **report["parts"], "noise": report["noise"]}
    for name, shift in (SHIFT | {"noise": 0.01}).items():
        assert found[name]["k1_kl"] == pytest.approx(shift)
        assert found[name]["k3_kl"] == pytest.approx(math.exp(-shift) - 1 + shift)
        assert found[name]["ess"] == pytest.approx(1) and found[name]["standard_errors"]["k3_kl"] < 1e-9
        assert found[name]["sequence_weights"]["largest"] == pytest.approx(math.exp(-40 * shift))
        assert found[name]["tokens"] == sum(len(one["train"]) for one in report["sequences"][name])
    (layer,) = report["layers"]
    assert layer == {"name": "a.b", "error": pytest.approx(0.01), "worst": layer["error"], "share": 1, "extra_bytes": 7}
    for words in ("int8, fp8 cache", "int8, bf16 cache", "bf16, fp8 cache", "a.b", "64 to 256"):
        assert words in ended.stderr


def test_scheme_bf16_is_the_noise_floor(model, monkeypatch):
    monkeypatch.setattr(engines, "run", (fake := Engines()).run)
    assert CliRunner().invoke(app, [str(model), "--scheme", "bf16", "--fail-above", "1"]).exit_code == 0
    assert [(of(task)[0], task.watched) for task in fake.tasks] == [("bf16", None)] * 2


@pytest.mark.parametrize(
    ("token", "sequence", "word"), [(0.5, 0.1, "ignore"), (0.99, 0.5, "rollout_is=token"), (0.99, 0.9, None)]
)
def test_what_to_do_where_weights_leave_little(token, sequence, word):
    from ascend_quant.mismatch.report import remarks

    found = {"k3_kl": 2e-4, "ess": token, "sequence_weights": {"ess": sequence}}
    said = "\n".join(remarks({"mismatch": found, "noise": {"k3_kl": 1e-5}, "prompts_left_out": 0}))
    assert has_line_naming(said, "20", "0.0002", "1e-05") and has_line_naming(said, f"{token:g}", f"{sequence:g}")
    assert [one for one in ("ignore", "rollout_is=token") if one in said] == ([word] if word else [])


def test_of_a_failed_engine_the_cause_comes_first_and_once():
    cause, frames = "RefitError: missing a.weight", [f"  frame {i}" for i in range(40)]
    told = f"(EngineCore pid=7) ERROR 11-21 15:42:48 [core.py:72] {cause}\n(EngineCore pid=7) {cause}\n\n"
    found = engines.last_words(told + "\n".join([*frames, "builtins.RuntimeError: see above", ""])).splitlines()
    assert found[:3] == [cause, "builtins.RuntimeError: see above", "..."]
    assert found[3:] == [*frames[33:], "builtins.RuntimeError: see above"]
    assert engines.last_words("one\n\ntwo\n") == "...\none\ntwo"


@pytest.mark.parametrize("place", ["/nowhere/model", "./model"])
def test_a_folder_that_is_not_there_is_no_id_of_the_hub(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadCheckpoint, match=f"'{place}'") as raised:
        prompts.load(place)
    assert "Repo" not in str(raised.value), "the hub's words"
