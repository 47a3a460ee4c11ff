"""Every test that goes through the real vllm-ascend says whether it runs with each of its versions.

`./run.sh test npu` runs what is marked `each_version` with vllm-ascend 0.30 too. Not every test: the cost, smoke
and the stand-in for the hardware are the same whatever the engine is.
"""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1] / "npu_host"
THROUGH = {"vllm", "vllm_ascend", "vllm_engine", "whole_model", "two_ranks", "layers"}  # and helpers that import them


def imported(tree: ast.Module) -> set[str]:
    """Names of packages and of modules of npu_host, wherever in the file they are imported."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
            names.update(alias.name for alias in node.names if node.module == "npu_host")
    return names


@pytest.mark.parametrize("file", sorted(TESTS.glob("test_*.py")), ids=lambda file: file.stem)
def test_what_goes_through_the_engine_is_marked(file: Path):
    tree = ast.parse(file.read_text())
    marked = any(isinstance(node, ast.Attribute) and node.attr == "each_version" for node in ast.walk(tree))
    assert marked or not imported(tree) & THROUGH


def test_the_rule_finds_something():
    found = [file for file in TESTS.glob("test_*.py") if imported(ast.parse(file.read_text())) & THROUGH]
    assert len(found) > 5
