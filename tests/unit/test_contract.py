"""The contract with vLLM: its reader of sources that are not installed, and that the table has what our sources use."""

import ast
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from naming import has_line_naming

from ascend_quant.integrations.contract import missing, problem_of, use
from ascend_quant.integrations.vllm.contract import CONTRACT
from launch import LaunchError
from tools.contract.check import OURS, imported, of_folder, read
from tools.contract.sources import Sources, parameters_of, takes

PACKAGE = {
    "pack/__init__.py": """
        TABLE = {"Lazy": "pack.deep:Lazy"}
        def __getattr__(name): ...
        from pack.deep import inner as renamed
        from .stars import *
        from other import unknown
    """,
    "pack/deep.py": """
        try:
            import numpy
        except ImportError:
            numpy = None
        def inner(a, /, b, *, c=1): ...
        def takes_all(a, **others): ...
        class Base:
            kind: str = "x"
            def method(self, x): self.given, self.other = x, 1
        class Derived(Base):
            b: int = 0
            async def later(self): ...
        class Made(Derived):
            def __init__(self, first): ...
    """,
    "pack/stars.py": "def starred(): ...",
    "pack/space/inside.py": "X = 1",
}


@pytest.fixture
def sources(tmp_path):
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(dedent(text))
    return Sources(tmp_path)


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("pack", True),
        ("pack.deep", True),
        ("pack.none", False),
        ("pack:renamed", True),
        ("pack:inner", False),
        ("pack:starred", True),
        ("pack:unknown", True),
        ("pack:Lazy", True),
        ("pack:lazy", False),
        ("pack:deep", True),
        ("pack.space:inside", True),
        ("pack.space.inside:X", True),
        ("pack.deep:numpy", True),
        ("pack.deep:Derived.method", True),
        ("pack.deep:Derived.later", True),
        ("pack.deep:Derived.kind", True),
        ("pack.deep:Derived.given", True),
        ("pack.deep:Derived.other", True),
        ("pack.deep:Derived.never", False),
        ("pack.deep:Absent.method", False),
        ("pack:TABLE.items", True),
    ],
)
def test_a_name_is_found_as_an_import_would(sources, name, there):
    assert (sources.find(name) is not None) is there


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pack:renamed", {"a", "b", "c"}),
        ("pack.deep:takes_all", None),
        ("pack.deep:Derived", {"kind", "b"}),
        ("pack.deep:Made", {"self", "first"}),
    ],
)
def test_what_it_takes_is_read_from_its_signature(sources, name, expected):
    assert parameters_of(sources.find(name)) == expected


def test_both_readers_say_the_same_of_a_row(sources, monkeypatch):
    monkeypatch.syspath_prepend(sources.folder)
    rows = (
        use("pack.deep:gone", "pack.deep:inner", arguments=("b", "d")),
        use("pack.deep:takes_all", arguments=("anything",)),
        use("pack.deep:Base.gone"),
    )
    found = [problem for row in rows if (problem := problem_of(row, sources.find, takes))]
    assert found == missing(rows) and len(found) == 2
    assert has_line_naming(found[0], "pack.deep:inner(b, d)", "d") and has_line_naming(found[1], "Base.gone")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pack"]:
        del sys.modules[name]


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(LaunchError, match=str(tmp_path)):
        read(str(tmp_path))


def imports_that_must_succeed(node: ast.AST) -> set[str]:
    """Names that a file imports from vLLM, but those of an import that may fail."""
    if isinstance(node, ast.Try) and any("ImportError" in ast.unparse(one.type) for one in node.handlers if one.type):
        return set()
    return set(imported(node, "vllm")).union(*map(imports_that_must_succeed, ast.iter_child_nodes(node)))


def test_every_name_that_our_sources_import_is_in_the_table():
    table = [name.replace(":", ".").split(".") for rows in CONTRACT.values() for row in rows for name in row.names]
    known = {".".join(parts[:count]) for parts in table for count in range(1, len(parts) + 1)}  # and what it is in
    used = set().union(*(imports_that_must_succeed(ast.parse(file.read_text())) for file in OURS.rglob("*.py")))
    assert {name for name in used if name.replace(":", ".") not in known} == set()


def test_the_installed_vllm_has_what_its_features_need():
    vllm = pytest.importorskip("vllm")
    readings = of_folder(Path(vllm.__file__).parents[1])
    lacking = {one.feature: one.problems for one in readings if one.feature in CONTRACT}
    assert lacking.pop("kv_cache int8 on NVIDIA") is not None  # refused by name from 0.29 on
    assert not any(lacking.values()), lacking
