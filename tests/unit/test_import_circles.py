"""No circle of files in launch, by every import that they write, inside functions too.

Of ascend_quant, benchmarks and tools import-linter says so (pyproject.toml, ./run.sh lint): it counts folders, too.
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


def test_no_file_imports_itself_in_the_end():
    graph = graph_of(ROOT / "launch")
    assert any(graph.values())
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")
