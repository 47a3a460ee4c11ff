"""The command lines for stack ascend-cann8.5 name what its verl has, by facts read from its source.

That commit is in no package index: data/verl_commit.py has written down its keys and their types, and says how to pass
the recipes through its own loader by hand. Not shown here: what it checks beyond names and types.
"""

import csv
from pathlib import Path
from typing import Any

import pytest

from ascend_quant.recipes.keys import ACTOR, OPEN, REFERENCE, UNLISTED
from launch.recipes import load, names, paths_of, resolve
from launch.recipes.verl import COMMIT

DATA = Path(__file__).parent / "data"
ON_NPU = [name for name in names() if load(name).stack.startswith("ascend")]
COMPILE = {f"{part}.fsdp_config.use_torch_compile" for part in (ACTOR, REFERENCE)}
KINDS = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list, "dict": dict}


def facts(backend: str) -> dict[str, str]:
    """That verl's settings, each with the type of its default; those above others are of type dict."""
    engine = "megatron" if backend == "megatron" else "dp"
    with (DATA / "verl_commit.csv").open() as file:
        found = {row["key"]: row[engine] for row in csv.DictReader(file) if row[engine]}
    above = (key[:place] for key in found for place, letter in enumerate(key) if letter == ".")
    return dict.fromkeys(above, "dict") | found


def on_older_stack(name: str):
    """The recipe as stack=ascend-cann8.5 makes it."""
    dynamic = "filter_groups" in load(name).verl.get("algorithm", {})
    return load(name, ["stack=ascend-cann8.5", *(["algorithm.filter_groups.enable=false"] if dynamic else [])])


def parsed(line: str) -> tuple[str, bool, Any]:
    """An override's key, whether it adds the key, and its value, as hydra reads them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import QuotedString

    override = OverridesParser.create().parse_override(line)
    value = override.value()
    return override.key_or_group, override.is_add(), value.text if isinstance(value, QuotedString) else value


def problems(lines: list[str], known: dict[str, str]) -> list[str]:
    """What that verl would refuse: an unknown key, an added one that is there, a value of another type."""
    found = []
    for key, adds, value in map(parsed, lines):
        kind = known.get(key)
        if adds != (kind is None) or (adds and not key.startswith(tuple(OPEN)) and key not in UNLISTED):
            found.append(f"{key}: {'is there' if adds else 'is not there'}")
        elif kind in KINDS and value is not None and not fits(value, KINDS[kind]):
            found.append(f"{key}: {value!r} is no {kind}")
    return found


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of the default's type; a whole number may have a point (1.0 for 1)."""
    whole = isinstance(value, float) and value.is_integer() and kind is int
    return whole or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool)))


def lines_of(recipe) -> list[str]:
    lines = resolve(recipe, paths_of(recipe, None, "/data", "/out"))
    return [line for line in lines if not line.startswith("model_engine=")]  # which file is composed, not a setting


def test_the_older_verl_knows_every_setting():
    pytest.importorskip("hydra", reason="hydra is not installed")
    assert ON_NPU
    for name in ON_NPU:
        recipe = on_older_stack(name)
        assert problems(lines_of(recipe), facts(recipe.backend)) == [], name


@pytest.mark.parametrize("key", COMMIT.unread)
def test_what_it_reads_nowhere_it_has_and_what_it_reads_instead_too(key: str):
    """Its sources were searched by hand: tests/engine/verl_reads.py, without the legacy workers, which do not run."""
    known = facts("fsdp2") | facts("megatron")
    assert {key, *COMMIT.unread[key]} <= known.keys()


def test_no_recipe_sets_what_it_reads_nowhere():
    for name in ON_NPU:
        keys = {line.partition("=")[0].lstrip("+") for line in lines_of(on_older_stack(name))}
        assert keys.isdisjoint(COMMIT.unread), name
        assert load(name).backend == "megatron" or keys.issuperset(COMPILE), name
