"""`demo --kv-cache`: whose engines have the cache, what verl is told, what is refused, what the report says."""

import json
from dataclasses import replace

import pytest
import torch
from naming import has_line_naming
from typer.testing import CliRunner

from launch.cli import app
from launch.demo import caches, recipe
from launch.demo.run import OptionError, choices, on_device


def chosen(arms: str, kv_cache: str = "fp8", **more) -> recipe.Choices:
    return choices(arms, False, 1, "token", 0, "qwen2", kv_cache=kv_cache, **more)


@pytest.mark.parametrize(
    ("arms", "kept"),
    [
        ("bf16,int8", {"bf16": "auto", "int8": "fp8"}),
        ("bf16", {"bf16": "fp8"}),
        ("bf16,bf16-uncorrected", {"bf16": "fp8", "bf16-uncorrected": "fp8"}),
        ("int8,int8-uncorrected,bf16", {"int8": "fp8", "int8-uncorrected": "fp8", "bf16": "auto"}),
        ("int4_g32-qat", {"int4_g32-qat": "fp8"}),
    ],
)
def test_bf16_is_what_the_others_are_compared_with(arms, kept):
    made = chosen(arms)
    assert {arm: caches.cache_of(made, arm) for arm in made.arms} == kept
    assert {arm for arm in made.arms if caches.settings_of(made, arm)} == {arm for arm in kept if kept[arm] != "auto"}
    assert not any(caches.settings_of(replace(made, kv_cache="auto"), arm) for arm in made.arms)


def test_verl_is_told_the_engines_own_option(tmp_path):
    made = chosen("bf16,int8")
    told = {arm: recipe.overrides(made, arm, tmp_path, tmp_path, caches.settings_of(made, arm)) for arm in made.arms}
    found = {arm: [one for one in told[arm] if "kv_cache" in one] for arm in told}
    assert found == {"bf16": [], "int8": [f"++{caches.OPTION}={json.dumps('fp8')}"]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kv-cache", "int4"], ("--kv-cache", "'int4'", "fp8")),
        (["--kv-cache", "int8"], ("--kv-cache int8", "CPUs")),
        (["--kv-cache", "fp8", "--hybrid"], ("--kv-cache fp8", "--hybrid")),
    ],
)
def test_what_is_refused(options, words, tmp_path):
    ended = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out"), *options])
    assert ended.exit_code == 2 and has_line_naming(ended.output, *words)
    assert not (tmp_path / "out").exists()


def test_a_cpu_without_avx512(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: False)
    with pytest.raises(OptionError, match="--kv-cache fp8"):
        on_device(chosen("int8"), asked=True)
    assert on_device(chosen("int8", "auto"), asked=True)[0].kv_cache == "auto"


@pytest.mark.parametrize(("capability", "refused"), [((8, 0), {"fp8"}), ((9, 0), set())])
def test_gpus(monkeypatch, capability, refused):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    for kv_cache in ("auto", "int8", "fp8"):
        made = chosen("int8", kv_cache, device="cuda")
        if kv_cache in refused:
            with pytest.raises(OptionError, match="--kv-cache fp8"):
                on_device(made, asked=True)
        else:
            assert on_device(made, asked=True)[0].kv_cache == kv_cache


def test_the_table_names_the_cache():
    assert caches.named({"name": "int8", "kv_cache": "fp8"}) == "int8, fp8 cache"
    assert caches.named({"name": "bf16", "kv_cache": "auto"}) == "bf16"
