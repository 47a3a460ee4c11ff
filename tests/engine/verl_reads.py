"""Which settings verl's sources read: by name, and by the part of the configuration that each is looked up in.

An access is SOMETHING.NAME, SOMETHING["NAME"], SOMETHING.get("NAME"), or a call with SOMETHING and "NAME" (getattr,
OmegaConf.select and helpers like them). Where SOMETHING is called as a part of the configuration (`engine_config`,
`config.trainer`) the setting must lie in such a part; under another name (`self.config`) it may be any.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Key = tuple[str, ...]
REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([\w.]+)")
CALLED = {"engine": {"fsdp_config", "megatron", "fsdp"}, "optimizer": {"optim"}, "fsdp_config": {"fsdp_config", "fsdp"}}


def read(sources: Path, trees: list[dict[str, Any]]) -> tuple[set[Key], set[Key]]:
    """The settings in verl's default configurations (one tree an engine), and those of them that are read.

    A setting is also read where another that is read takes its value from it.
    """
    found = _accesses(sources)
    keys = {key: value for tree in trees for key, value in _leaves(tree)}
    parts = {part for key in keys for part in key[:-1]}
    known = {key for key in keys if any(_fits(holder, key, parts) for holder in found.get(key[-1], ()))}
    grown = -1
    while grown != len(known):
        grown = len(known)
        known |= {_absolute(one, key) for key in known for one in REFERENCE.findall(str(keys.get(key)))}
    return set(keys), known & set(keys)


def _fits(holder: str, key: Key, parts: set[str]) -> bool:
    """Whether a setting can be what is looked up in something of this name."""
    above = key[-2] if len(key) > 1 else ""
    short = holder.removesuffix("_config").removesuffix("_cfg")
    for name in (short, holder):
        if name in CALLED:
            return above in CALLED[name]
        if name in parts:
            return above == name
    return True


def _accesses(sources: Path) -> dict[str, set[str]]:
    """The names of what each setting's name is looked up in."""
    found: dict[str, set[str]] = {}
    for file in sources.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            for name, holder in _lookups(node):
                found.setdefault(name, set()).add(holder)
    return found


def _lookups(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr, _called(node.value)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and (name := _word(node.slice)):
        yield name, _called(node.value)
    elif isinstance(node, ast.Call) and node.args:
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop") and (name := _word(node.args[0])):
            yield name, _called(node.func.value)
        elif len(node.args) > 1 and (name := _word(node.args[1])):
            *above, last = name.split(".")
            yield last, above[-1] if above else _called(node.args[0])


def _called(node: ast.AST) -> str:
    """The last name of an expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Subscript):
        return _word(node.slice) or ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return _word(node.args[0]) or ""
    return ""


def _word(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _leaves(tree: dict[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, str(name)))
        else:
            yield (*above, str(name)), value


def _absolute(reference: str, key: Key) -> Key:
    """${.name} is beside the setting that says it, ${..name} a level higher."""
    up = len(reference) - len(reference.lstrip("."))
    return (*(key[:-up] if up else ()), *reference.lstrip(".").split("."))
