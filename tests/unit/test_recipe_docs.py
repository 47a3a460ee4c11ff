"""The pages about recipes, in both languages: tables, settings and commands are those of the recipes and their stacks.

The memory that the INT8 recipes name holds what is counted here from the models' shapes, as docs/recipes.md says.
Bytes a parameter: FSDP 16 on all devices (float32 weights, gradients and Adam's two); Megatron 6 on the devices that
share it (BF16 weights, float32 gradients) and 12 on all (float32 weights and Adam's two). A logit takes 10: once in
BF16, twice in float32.
"""

import inspect
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import bake_file
import pytest

from ascend_quant.recipes.keys import ACTOR, REFERENCE
from launch.environment.resolve import rows as variables
from launch.recipes import Recipe, command, load, names, paths_of, resolve
from launch.recipes.stacks import all_pins, pins

DOCS = Path(__file__).parents[2] / "docs"
LOW_PRECISION = ("low_precision.md", "low_precision.zh.md")
RECIPES = ("recipes.md", "recipes.zh.md")
FLASHRL = ("flashrl.md", "flashrl.zh.md")


@cache
def told() -> list[tuple[str, ...]]:
    return [command.row(load(name)) for name in names()]


def in_few_bits(row: tuple[str, ...]) -> bool:
    """Whether docs/low_precision.md has the recipe, not docs/recipes.md."""
    return row[1].startswith(("fp8", "int4"))


def table(page: str) -> list[tuple[str, ...]]:
    """Every line of a page's tables that begins with a recipe's name, and has as many cells as `recipe list`."""
    lines = [line.strip("| ").split(" | ") for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    return [tuple(line) for line in lines if line[0] in names() and len(line) == len(command.COLUMNS)]


def in_chinese(cell: str) -> str:
    """A cell of `recipe list` as the Chinese pages have it."""
    for english, chinese in (
        (r" of (?=\d+ GiB)", "，各 "),
        (", QAT", "，QAT"),
        (", KV ", "，KV "),
        ("FP8 blockwise", "FP8，按块"),
        ("exact INT8", "精确 INT8"),
    ):
        cell = re.sub(english, chinese, cell)
    return cell


@pytest.mark.parametrize("page", LOW_PRECISION)
def test_the_table_is_the_recipes(page: str):
    wanted = [row for row in told() if in_few_bits(row)]
    assert table(page) == ([tuple(map(in_chinese, row)) for row in wanted] if ".zh." in page else wanted)


CODE = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    """A line of the tables: of which recipes and stacks, what they say, and what they say nowhere."""

    setting: str
    of: tuple[str, ...]
    said: tuple[str, ...]
    absent: tuple[str, ...]


def rows(page: str) -> list[Row]:
    found = []
    for line in (DOCS / page).read_text().splitlines():
        cells = line.strip("|").split("|")
        if line.startswith("|") and len(cells) == 5 and CODE.search(cells[2]):
            here = CODE.findall(cells[3])
            of = tuple(CODE.findall(cells[2]))
            said = tuple(one for one in here if "=" in one)
            found.append(Row(cells[0].strip(), of, said, tuple(one for one in here if "=" not in one)))
    return found


def built(stack: str) -> dict[str, str]:
    """What the builds of a stack's images are told."""
    return bake_file.arguments(bake_file.of_stack(stack)[0])


@cache
def facts(name: str) -> tuple[tuple[str, str], ...]:
    """What a stack's pins and variables say, or a recipe's overrides and variables, by their keys."""
    if name in all_pins():
        stack = pins(name)
        own = {"python": stack.python, "cann": stack.cann or "", **built(name), **stack.packages}
        commits = {source: found.commit for source, found in stack.sources.items()}
        table = {row.name: row.value for row in variables(name)}
        return (*own.items(), *commits.items(), *table.items())
    name, _, stack = name.partition("@")
    recipe = load(name, [f"stack={stack}"] if stack else [])
    found = resolve(recipe, paths_of(recipe, None, "/data", "/out"))
    lines = [one.lstrip("+").split("=", 1) for one in found]
    return (*((key, value.strip("'")) for key, value in lines), *recipe.environment.items())


def values(name: str, key: str) -> set[str]:
    """Of what ends in this key."""
    return {value for one, value in facts(name) if one == key or one.endswith(f".{key}")}


@pytest.mark.parametrize("row", rows(FLASHRL[0]), ids=lambda row: row.setting)
def test_what_the_page_says_is_so(row: Row):
    assert row.said or row.absent
    for name in row.of:
        for key, value in (one.split("=", 1) for one in row.said):
            assert value in values(name, key), (name, key)
            assert len(values(name, key)) == 1 or name in all_pins(), "a key's end that several have"
        for word in row.absent:
            assert not [pair for pair in facts(name) if word in "=".join(pair)], name


def test_both_languages_say_the_same():
    english, chinese = map(rows, FLASHRL)
    assert [row[1:] for row in english] == [row[1:] for row in chinese]
    assert len(english) > 25


def test_every_stack_and_recipe_of_the_page_is_there():
    of = {one.partition("@")[0] for row in rows(FLASHRL[0]) for one in row.of}
    assert of <= {*all_pins(), *names()}


GIB = 2**30
SHAPES = {  # layers, hidden, what a layer's attention writes and reads in all, MLP width, experts, vocabulary
    "Qwen/Qwen2.5-7B": (28, 3584, 2 * 3584 + 2 * 512, 18944, 1, 152064),
    "Qwen/Qwen2.5-32B": (64, 5120, 2 * 5120 + 2 * 1024, 27648, 1, 152064),
    "Qwen/Qwen3-30B-A3B": (48, 2048, 2 * 4096 + 2 * 512, 768, 128, 151936),
}
INT8 = [name for name in names() if "-int8-" in name]


def parameters(hub: str) -> tuple[float, float, int]:
    """Parameters outside of experts, those of experts, and the vocabulary; biases and norms are left out."""
    layers, hidden, attention, width, experts, vocabulary = SHAPES[hub]
    mlp = layers * 3 * hidden * width * experts
    others = layers * hidden * attention + 2 * hidden * vocabulary
    return (others, mlp, vocabulary) if experts > 1 else (others + mlp, 0, vocabulary)


def waits(recipe: Recipe, part: str) -> bool:
    """Return whether the weights are on the host while the engine generates."""
    engine = "megatron" if recipe.backend == "megatron" else "fsdp_config"
    return recipe.setting(f"{part}.{engine}.param_offload", False)


def counted(name: str) -> tuple[float, float, float, float]:
    """GiB a device: the trainer's states, logits, the engine's share; and GiB a host of what waits there."""
    recipe = load(name)
    dense, experts, vocabulary = parameters(recipe.model.hub)
    whole, devices, tokens = dense + experts, recipe.devices, recipe.setting(f"{ACTOR}.ppo_max_token_len_per_gpu")
    logits = tokens * vocabulary * 10
    states = 16 * whole / devices
    if recipe.backend == "megatron":
        sizes = [f"{ACTOR}.megatron.{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert")]
        tensor, pipeline, expert = map(recipe.setting, sizes)
        mine = dense / (tensor * pipeline) + experts / (expert * pipeline)
        states, logits = 6 * mine + 12 * whole / devices, logits / tensor
    replicas = devices // recipe.rollout.tensor_parallel
    kept = 2 * whole  # of one engine in BF16, the larger twin
    host = 12 * whole * waits(recipe, ACTOR) + 4 * whole * waits(recipe, REFERENCE) + replicas * kept
    engine = recipe.rollout.gpu_memory_utilization * recipe.memory.device
    return states / GIB, logits / GIB, engine, host / recipe.nodes / GIB


@pytest.mark.parametrize("name", INT8)
def test_the_memory_it_names_is_enough(name: str):
    recipe = load(name)
    states, logits, engine, host = counted(name)
    assert states + logits < 0.85 * recipe.memory.device, "training, with room for activations and gathered layers"
    assert engine + states * (not waits(recipe, ACTOR)) < 0.9 * recipe.memory.device, "generating"
    assert host < 0.9 * recipe.memory.host


ON_NPUS = [name for name in names() if load(name).stack.startswith("ascend")]


@pytest.mark.parametrize("name", ON_NPUS)
def test_a_recipe_for_npus_is_as_the_page_says(name: str):
    """Its attention, its graphs, and the one time-out that differs."""
    assert not values(name, "attn_implementation"), "verl's own, flash_attention_2"
    assert values(name, "use_flash_attn") == ({"true"} if "megatron" in name else set())
    assert not values(name, "enforce_eager")
    short = "-gsm8k-" in name or "-first-" in name
    assert values(name, "HCCL_CONNECT_TIMEOUT") == ({"3000"} if short else set())


@pytest.mark.parametrize("page", RECIPES)
def test_the_generated_table_names_every_recipe_of_the_page_and_its_devices(page: str):
    lines = [line.strip("| ").split(" | ") for line in (DOCS / page).read_text().splitlines()]
    found = {
        pattern.strip("`").replace("*", variant): (devices.replace(" x ", " ").split()[:3], stack)
        for pattern, variants, devices, stack, *_ in (line for line in lines if len(line) == 6 and "*" in line[0])
        for variant in re.split("[,、] ?", variants)
    }
    wanted = {row[0]: (re.findall(r"\d+", row[3]), row[4]) for row in told() if not in_few_bits(row)}
    assert found == wanted


@pytest.mark.parametrize("page", ["ascend.md", "ascend.zh.md"])
def test_what_fsdp2_sends_whole_from_rank_0_is_as_large_as_the_page_says(page: str):
    """And verl has no other way: its loader reads neither a setting nor the environment."""
    utils = pytest.importorskip("verl.utils.fsdp_utils", reason="verl is not installed")
    loader = inspect.getsource(utils.fsdp2_load_full_state_dict)
    assert "broadcast_from_rank0=True" in loader and "environ" not in loader
    (line,) = [part for part in (DOCS / page).read_text().split("\n* ") if part.startswith("FSDP2")]
    for _, hidden, _, width, experts, vocabulary in SHAPES.values():
        stack = 2 * width * experts if experts > 1 else width  # transformers 5 has the experts of a layer in one
        assert f"{4 * hidden * max(vocabulary, stack) / 1e9:.2f} GB" in line


@pytest.mark.parametrize("name", INT8)
def test_a_recipe_says_whether_its_model_has_experts(name: str):
    recipe = load(name)
    assert recipe.model.experts == (SHAPES[recipe.model.hub][4] > 1)


def test_the_counted_parameters_are_the_models():
    """Against the numbers on their cards, in billions."""
    for hub, billions in (("Qwen/Qwen2.5-7B", 7.61), ("Qwen/Qwen2.5-32B", 32.5), ("Qwen/Qwen3-30B-A3B", 30.5)):
        dense, experts, _ = parameters(hub)
        assert (dense + experts) / 1e9 == pytest.approx(billions, rel=0.01)
