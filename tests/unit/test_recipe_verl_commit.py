"""The command lines for stack ascend-cann8.5 name what its verl has, by facts read from its source.

That commit is in no package index: data/verl_commit.py has written down its keys and their types, and says how to pass
the recipes through its own loader by hand. Not shown here: what it checks beyond names and types.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from launch.recipes import load, names, paths_of, resolve
from launch.recipes.overrides import OPEN, UNLISTED
from launch.recipes.settings import COMPILE
from launch.recipes.versions import COMMIT

DATA = Path(__file__).parent / "data"
ON_NPU = [name for name in names() if load(name).stack.startswith("ascend")]
WITHOUT = {"verl.algorithm.filter_groups.enable": "false"}
KINDS = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list, "dict": dict}


def facts(backend: str) -> Any:
    """That verl's configuration, with the type of each default in place of its value."""
    return json.loads((DATA / f"verl_commit_{'megatron' if backend == 'megatron' else 'dp'}.json").read_text())


def on_older_stack(name: str):
    """The recipe as --set stack=ascend-cann8.5 makes it."""
    dynamic = "filter_groups" in load(name).verl.get("algorithm", {})
    return load(name, changes={"stack": "ascend-cann8.5", **(WITHOUT if dynamic else {})})


def parsed(line: str) -> tuple[str, bool, Any]:
    """An override's key, whether it adds the key, and its value, as hydra reads them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import QuotedString

    override = OverridesParser.create().parse_override(line)
    value = override.value()
    return override.key_or_group, override.is_add(), value.text if isinstance(value, QuotedString) else value


def problems(lines: list[str], tree: Any) -> list[str]:
    """What that verl would refuse: an unknown key, an added one that is there, a value of another type."""
    found = []
    for key, adds, value in map(parsed, lines):
        place = tree
        for part in key.split("."):
            place = place.get(part) if isinstance(place, dict) else None
        if adds != (place is None) or (adds and not key.startswith(tuple(OPEN)) and key not in UNLISTED):
            found.append(f"{key}: {'is there' if adds else 'is not there'}")
        elif place in KINDS and value is not None and not fits(value, KINDS[place]):
            found.append(f"{key}: {value!r} is no {place}")
    return found


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of the default's type; a whole number may have a point (1.0 for 1)."""
    whole = isinstance(value, float) and value.is_integer() and kind is int
    return whole or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool)))


def lines_of(recipe) -> list[str]:
    lines = resolve(recipe, paths_of(recipe, None, "/data", "/out")).overrides
    return [line for line in lines if not line.startswith("model_engine=")]  # which file is composed, not a setting


def test_the_older_verl_knows_every_setting():
    pytest.importorskip("hydra", reason="hydra is not installed")
    assert ON_NPU
    for name in ON_NPU:
        recipe = on_older_stack(name)
        assert problems(lines_of(recipe), facts(recipe.backend)) == [], name


def holds(key: str, tree: Any) -> bool:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree is not None


@pytest.mark.parametrize("key", COMMIT.unread)
def test_what_it_reads_nowhere_it_has_and_what_it_reads_instead_too(key: str):
    """Its sources were searched by hand: tests/engine/verl_reads.py, without the legacy workers, which do not run."""
    trees = [facts("fsdp2"), facts("megatron")]
    for one in (key, *COMMIT.unread[key]):
        assert any(holds(one, tree) for tree in trees), one


def test_no_recipe_sets_what_it_reads_nowhere():
    for name in ON_NPU:
        keys = {line.partition("=")[0].lstrip("+") for line in lines_of(on_older_stack(name))}
        assert keys.isdisjoint(COMMIT.unread), name
        assert load(name).backend == "megatron" or keys.issuperset(COMPILE), name
