"""What building a package from its source asks for, read from the source itself, without running it.

`python tests/unit/source_facts.py CHECKOUT ..` prints it, for tests/unit/data/source_builds.yaml.
"""

import ast
import re
import sys
from pathlib import Path


def imports(setup: str) -> list[str]:
    """The modules of others that a setup.py needs to start: imports outside functions, programs run as `python -m`."""
    tree = ast.parse(setup)
    found = set()
    for node in _at_import(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.List):
            words = [one.value for one in node.elts if isinstance(one, ast.Constant)]
            found |= {words[place + 1] for place, word in enumerate(words[:-1]) if word == "-m"}
    return sorted(found - sys.stdlib_module_names)


def _at_import(node: ast.AST):
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _at_import(child)


def requires(pyproject: str) -> list[str]:
    """[build-system] requires."""
    block = re.search(r"(?ms)^\[build-system\].*?^requires\s*=\s*\[(.*?)\]", pyproject)
    lines = [line.partition("#")[0] for line in block[1].splitlines()] if block else []
    return sorted(re.findall(r"[\"']([^\"']+)[\"']", "\n".join(lines)))


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        print(folder.name)
        for what, file, read in (("imports", "setup.py", imports), ("requires", "pyproject.toml", requires)):
            print(f"  {what}: {read((folder / file).read_text()) if (folder / file).exists() else []}")
