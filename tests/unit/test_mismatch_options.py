"""Options that are refused before any engine starts, and what the engines are asked for."""

from pathlib import Path

import pytest
from naming import has_line_naming

typer = pytest.importorskip("typer")

from typer.testing import CliRunner  # noqa: E402

from ascend_quant.commands.mismatch import mismatch  # noqa: E402
from ascend_quant.mismatch import measure  # noqa: E402
from ascend_quant.mismatch.measure import Asked, reference_task, sampling_task, trial_task  # noqa: E402
from ascend_quant.mismatch.settings import OptionError, Settings, profile_at  # noqa: E402
from ascend_quant.profile.rules import files_of  # noqa: E402

app = typer.Typer()
app.command()(mismatch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scheme", "int9"), "unknown scheme 'int9'; this version has: int8"),
        (("--scheme", "int8", "--max-tokens", "0"), "--max-tokens 0: at least 1"),
        (("--scheme", "int8", "--tokens", "0"), "--tokens 0: at least 1"),
        (("--scheme", "int8", "--tp", "0"), "--tp 0: at least 1"),
        *((("--scheme", "int8", "--threshold", value), f"--threshold {value}: ") for value in ("0.0", "nan", "inf")),
        *((("--scheme", "int8", "--seed", value), f"--seed {value}: ") for value in ("-1", str(1 << 32))),
        *(
            (("--scheme", "int8", "--gpu-memory-utilization", value), "--gpu-memory-utilization")
            for value in ("nan", "0", "7")
        ),
        (("--scheme", "int8", "--fail-above", "nan"), "--fail-above nan: "),
        (("--scheme", "int8", "--plot", "/"), "--plot /: is a folder"),
        (("--scheme", "int8", "--length", "0"), "--length 0: at least 1"),
        (("--scheme", "int8", "--profile", "x" * 5000), "0 profiles are there"),
        (("--scheme", "int8", "--profile", "absent.pt"), "--profile absent.pt: 0 profiles are there"),
        (("--scheme", "int8", "--raw"), "--raw: … --out FILE or --json"),
        (("--scheme", "int8", "--plot", "absent/plot.png"), "--plot absent/plot.png: there is no folder"),
        (("--scheme", "int8", "--out", "absent/report.json"), "--out absent/report.json: there is no folder"),
        *((("--scheme", "int8", option, "x" * 300), option) for option in ("--out", "--plot")),
    ],
)
def test_bad_options_end_with_2_and_one_line(options, message):
    ended = CliRunner().invoke(app, ["some-model", *options])
    assert ended.exit_code == 2
    assert has_line_naming(ended.stderr, message) and len(ended.stderr.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with a configuration and a tokenizer; no engine starts on it."""
    transformers = pytest.importorskip("transformers")
    from launch.demo.model import save_tokenizer

    folder = tmp_path_factory.mktemp("model")
    transformers.Qwen2Config(vocab_size=20, eos_token_id=2).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("1+2=", ("--prompts", "absent.txt"), "absent.txt"),
        ("abc", (), "no token for it"),
        ("1+2=", ("--max-model-len", "20", "--max-tokens", "16"), "the longest prompt needs 21 (4 tokens"),
    ],
)
def test_bad_prompts_end_with_2(model, tmp_path, line, options, message):
    path = tmp_path / "prompts.txt"
    path.write_text(line)
    ended = CliRunner().invoke(app, [str(model), "--scheme", "int8", "--prompts", str(path), *options])
    assert ended.exit_code == 2 and has_line_naming(ended.stderr, message)


def test_a_folder_without_a_model_ends_with_2(tmp_path):
    pytest.importorskip("transformers")
    ended = CliRunner().invoke(app, [str(tmp_path), "--scheme", "int8"])
    assert ended.exit_code == 2 and has_line_naming(ended.stderr, tmp_path, "configuration")


def test_what_is_asked(model, tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(["1", "2", "3", "4+4", "5", "6"]))
    asked = measure.ask(Settings(str(model), "int8", path, max_tokens=10, tokens=39))
    assert [len(prompt) for prompt in asked.prompts] == [1, 1, 1]  # the 1st, 3rd and 5th
    assert (asked.left_out, asked.length) == (3, 12)
    assert 2 in asked.stop
    asked = measure.ask(Settings(str(model), "int8", path, max_tokens=10, max_model_len=64))
    assert len(asked.prompts) == 6 and (asked.left_out, asked.length) == (0, 64)


def write_profile(stem: Path) -> Path:
    for suffix in (".safetensors", ".json"):
        stem.with_name(stem.name + suffix).touch()
    return stem


def test_a_profile_is_what_profile_writes(tmp_path):
    """The stem that its -o was given (dots and all), either file, or the folder; FlashRL's .pt."""
    stem = write_profile(tmp_path / "qwen2.5")
    for path in (stem, tmp_path / "qwen2.5.json", tmp_path / "qwen2.5.safetensors", tmp_path):
        assert files_of(profile_at(path)) == files_of(stem)
    other = tmp_path / "flashrl.pt"
    other.touch()
    assert profile_at(other) == other
    write_profile(tmp_path / "second")
    with pytest.raises(OptionError, match="2 profiles"):
        profile_at(tmp_path)
    (tmp_path / "second.json").unlink()
    with pytest.raises(OptionError, match="0 profiles"):
        profile_at(tmp_path / "second")
    with pytest.raises(OptionError, match="not with fp8"):
        Settings("m", "fp8", profile=stem)


def test_the_engines_differ_in_their_scheme_alone(tmp_path):
    profile = write_profile(tmp_path / "profile")
    settings = Settings("m", "int8", ignore=("a",), profile=profile, tp=2, seed=3, memory=0.5)
    asked = Asked([[1], [2], [3]], 0, [7], 50)
    first = sampling_task(settings, asked)
    sampled = [{"prompt": [1] * 200, "response": [2] * 100, "logprobs": [0.0] * 100}] * 4
    second = reference_task(settings, asked, sampled)
    assert first.prompts == [[1], [2], [3]] and second.prompts == [[1], [2]]
    assert first.sampling == second.sampling == {"max_tokens": 128, "stop_token_ids": [7]}
    assert (second.watched, second.every) == ("int8", 3)  # 1200 tokens, of which 512 at most are looked at
    configs = [task.engine.pop("hf_overrides")["quantization_config"] for task in (first, second)]
    common = {"quant_method": "ascend_quant", "ignore": ["a"]}
    assert configs[0] == {**common, "scheme": "int8", "profile": str(profile)}
    assert configs[1] == {**common, "scheme": "bf16"}
    assert second.engine.pop("worker_extension_cls") == measure.EXTENSION
    assert first.engine == second.engine
    third = trial_task(settings, asked, sampled, [r"re:.*\.b$"])
    assert third.engine.pop("hf_overrides")["quantization_config"] == configs[0] | {"ignore": ["a", r"re:.*\.b$"]}
    assert (third.job, third.sequences, third.engine) == ("score", sampled, first.engine)
    assert first.engine["tensor_parallel_size"] == 2 and first.engine["gpu_memory_utilization"] == 0.5
    assert reference_task(Settings("m", "bf16"), asked, sampled).watched is None
