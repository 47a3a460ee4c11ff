"""Static analysis of an unpacked package, without importing it: the names of a module, and their arguments.

Names are followed through imports, `import *`, base classes and the tables of lazily loading modules; attributes of
instances through `self.name = ..` in any method. Names created at run time in other ways are not found.
"""

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

DEEPEST = 12  # maximum length of a chain of imports or base classes
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Found(NamedTuple):
    """The definition of a name; `node` is None for a module, and for names of unknown packages."""

    module: "Module"
    node: ast.AST | None


class Sources:
    """The source files of the packages below one folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> "Module | None":
        """Return a module of the sources; None if there is none."""
        if name not in self._modules:
            place = self.folder.joinpath(*name.split("."))
            files = (place / "__init__.py", place.with_suffix(".py"))
            file = next((one for one in files if one.is_file()), None)
            known = file is not None or place.is_dir()
            self._modules[name] = Module(self, name, file) if known else None
        return self._modules[name]

    def find(self, name: str) -> Found | None:
        """Return the definition of "module", "module:name" or "module:Class.attribute"; None if it does not exist."""
        module_name, _, path = name.partition(":")
        module = self.module(module_name)
        if module is None or not path:
            return module and Found(module, None)
        first, *rest = path.split(".")
        found = module.find(first)
        for part in rest:
            found = found and _member(found, part)
        return found


class Module:
    """A module of the sources, which is parsed and not imported."""

    def __init__(self, sources: Sources, name: str, file: Path | None):
        self.sources, self.name, self.file = sources, name, file

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """The statements of the module itself, including branches."""
        return [] if self.file is None else list(_flat(ast.parse(self.file.read_text("utf-8")).body))

    def find(self, name: str, depth: int = 0) -> Found | None:
        """Return the definition of a name in this module."""
        if depth > DEEPEST:
            return None
        for statement in reversed(self.statements):
            if name in _defined(statement):
                return Found(self, statement)
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    if name == (alias.asname or alias.name) and (one := self._imported(statement, alias.name, depth)):
                        return one
                    if alias.name == "*" and (one := self._imported(statement, name, depth)):
                        return one
        if (submodule := self.sources.module(f"{self.name}.{name}")) is not None:
            return Found(submodule, None)
        return Found(self, None) if name in self._lazy else None

    def _imported(self, statement: ast.ImportFrom, name: str, depth: int) -> Found | None:
        base = statement.module or ""
        if statement.level:
            is_package = self.file is None or self.file.name == "__init__.py"
            parts = self.name.split(".")
            above = parts[: len(parts) - statement.level + is_package]
            base = ".".join([*above, base] if base else above)
        other = self.sources.module(base)
        if other is None:  # belongs to another package
            return Found(self, None) if name != "*" and base.partition(".")[0] != self.name.partition(".")[0] else None
        return other.find(name, depth + 1)

    @cached_property
    def _lazy(self) -> set[str]:
        """The keys of tables in a module with a `__getattr__`, through which it loads names lazily."""
        if not any(isinstance(one, FUNCTIONS) and one.name == "__getattr__" for one in self.statements):
            return set()
        tables = (one for statement in self.statements for one in ast.walk(statement) if isinstance(one, ast.Dict))
        return {key.value for table in tables for key in table.keys if isinstance(key, ast.Constant)}


def takes(found: Found, argument: str) -> bool:
    """Return whether a function or a class has, or may have, an argument of that name."""
    known = parameters_of(found)
    return known is None or argument in known


def parameters_of(found: Found) -> set[str] | None:
    """Return the argument names of a function or class; None if it accepts any, or its signature is unknown."""
    node = found.node
    if isinstance(node, FUNCTIONS):
        if node.args.kwarg is not None:
            return None
        return {one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    if not isinstance(node, ast.ClassDef):
        return None
    made = _member(found, "__init__")
    if made is not None and isinstance(made.node, FUNCTIONS):
        return parameters_of(made)
    fields = (
        one.target for owner in _with_bases(found) for one in _flat(owner.node.body) if isinstance(one, ast.AnnAssign)
    )
    return {target.id for target in fields if isinstance(target, ast.Name)}


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, including those in branches, handlers and blocks, but not in functions and classes."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With, ast.For)):
            for part in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from _flat(handler.body)


def _defined(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, ast.Import):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    return {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _with_bases(found: Found, depth: int = 0) -> Iterator[Found]:
    """Yield a class and its base classes, as far as their sources are available."""
    if not isinstance(found.node, ast.ClassDef) or depth > DEEPEST:
        return
    yield found
    for base in found.node.bases:
        base = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(base, ast.Name) and (one := found.module.find(base.id)) is not None:
            yield from _with_bases(one, depth + 1)


def _member(found: Found, name: str) -> Found | None:
    """Return an attribute of a class or its instances; a variable counts as having every attribute."""
    if isinstance(found.node, (ast.Assign, ast.AnnAssign)):
        return Found(found.module, None)
    for owner in _with_bases(found):
        for statement in reversed(list(_flat(owner.node.body))):
            if name in _defined(statement):
                return Found(owner.module, statement)
        if any(_gives_itself(node, name) for node in ast.walk(owner.node)):
            return Found(owner.module, None)
    return None


def _gives_itself(node: ast.AST, name: str) -> bool:
    """Return whether this assigns to `self.name`."""
    is_target = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name
    return is_target and isinstance(node.value, ast.Name) and node.value.id == "self"
