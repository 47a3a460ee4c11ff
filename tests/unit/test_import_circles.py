"""No circle of files in ascend_quant, launch and benchmarks, by every import that they write, inside functions too.

Which way imports point between the rooms of ascend_quant is import-linter's (pyproject.toml, ./run.sh lint).
"""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_of(folder: Path) -> dict[str, Path]:
    """Files by their modules' names."""
    files = {file.relative_to(folder.parent).with_suffix(""): file for file in folder.rglob("*.py")}
    return {".".join(path.parts).removesuffix(".__init__"): file for path, file in files.items()}


def imported(file: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of the same package that a file names in an import; a package's own file where a name is from it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                yield next((one for one in (f"{node.module}.{alias.name}", node.module) if one in modules), "")


def graph_of(folder: Path) -> dict[str, set[str]]:
    modules = modules_of(folder)
    return {name: set(imported(file, modules)) - {name, ""} for name, file in modules.items()}


@pytest.mark.parametrize("package", ["ascend_quant", "launch", "benchmarks"])
def test_no_file_imports_itself_in_the_end(package):
    graph = graph_of(ROOT / package)
    assert any(graph.values())
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


def test_a_circle_through_functions_and_packages_is_found(tmp_path):
    package = tmp_path / "p"
    (package / "q").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from p.q import b\n")
    (package / "q" / "__init__.py").write_text("import p.a\n")
    (package / "q" / "b.py").write_text("def f():\n    from p.q import name\n")
    assert graph_of(package) == {"p": set(), "p.a": {"p.q.b"}, "p.q": {"p.a"}, "p.q.b": {"p.q"}}
    with pytest.raises(CycleError):
        TopologicalSorter(graph_of(package)).prepare()
