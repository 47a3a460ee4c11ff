"""The lists of what is replaced at run time (integrations/*/hooks.py) are whole: nothing else of vLLM is ours, and no
room of the integrations assigns to what is not its own but where a list says so."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import ascend_quant
from ascend_quant.integrations.megatron import hooks as of_megatron
from ascend_quant.integrations.verl import hooks as of_verl
from ascend_quant.integrations.vllm import hooks as of_vllm
from ascend_quant.integrations.vllm import manual_patches
from ascend_quant.integrations.vllm.exact import hooks as exact
from ascend_quant.integrations.vllm.serving import hooks as serving
from ascend_quant.integrations.vllm_ascend import hooks as of_vllm_ascend

ROOMS = [Path(ascend_quant.__file__).parent / room for room in ("engine", "integrations")]
MANUAL_PATCHES = (*manual_patches.MANUAL_PATCHES, *of_verl.MANUAL_PATCHES, *of_megatron.MANUAL_PATCHES)
HOOKS = (*of_vllm.HOOKS, *of_vllm_ascend.HOOKS, *of_verl.HOOKS)

# Attributes that hold data, most of them ours: no code is replaced by setting them.
DATA = {
    *(
        "ascend_quant_broken",
        "ascend_quant_drafts",
        "ascend_quant_number",
        "ascend_quant_refit",
        "ascend_quant_refusal",
    ),
    *("ascend_quant_settle", "ascend_quant_unseen"),
    *("whole_input_size", "weight_scale_fp32", "w13_weight_scale_fp32", "_parameters"),  # a layer's
    *("_weight_update_active", "__traceback__", "_packed_sequences", "in_place"),
    *("quantization", "hf_overrides", "kv_cache_dtype", "attention_backend", "agent_loop_manager_class"),  # settings
    *("model", "revision"),
    *("data", "status_code", "middleware_stack"),  # of a parameter that is put back, an error, an application
    *("by_loader", "elsewhere", "skipped", "taken", "padded", "record", "wholes"),  # of our own books
    *("scheme", "coded", "kept", "keeps_weights", "bucket"),  # of our own training worker
}

# layout.py's books of a layer, what a layer of latent attention has derived, and scales of a KV cache.
TENSORS = (
    "setattr(layer, ATTRIBUTE, {**layouts_of(layer), name: layout})",
    "setattr(layer, name, old)",
    "setattr(layer, f'_{kind}_scale_float', value)",
)

# The functions in vLLM's and torch's modules and classes whose code is ours, once the plugin is there, and in the end.
REPLACED = """
import json, sys
from pathlib import Path
from types import FunctionType, ModuleType

import ascend_quant
from ascend_quant.integrations.vllm import hooks, register
from ascend_quant.integrations.wrapping import MARK, install

OURS = str(Path(ascend_quant.__file__).parent)

def ours():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("vllm", "torch") or not isinstance(module, ModuleType):
            continue
        held = list(vars(module).items())
        classes = [(key, value) for key, value in held if isinstance(value, type) and value.__module__ == name]
        held += [(f"{key}.{inner}", one) for key, value in classes for inner, one in vars(value).items()]
        for key, value in held:
            if isinstance(value, FunctionType) and value.__code__.co_filename.startswith(OURS):
                found[f"{name}:{key}"] = getattr(value, MARK, None)
    return found

register()
at_start = ours()
install(hooks.HOOKS)
print(json.dumps([at_start, ours()]))
"""


def test_of_vllm_is_replaced_what_is_listed_and_nothing_else():
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLASHRL_")}
    command = [sys.executable, "-c", REPLACED]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    at_start, replaced = json.loads(done.stdout.splitlines()[-1])
    first, every = targets(of_vllm.AT_START), targets(of_vllm.HOOKS)
    # a module that has imported a function by its name holds it too
    assert {listed for listed in at_start.values()} == first <= at_start.keys()
    later = (*serving.WITH_HTTP_SERVER, *of_vllm.WITH_FIRST_MODEL, *exact.WITH_FIRST_EXACT_MODEL)
    loaded_later = {target for hook in later if hook.loaded for target in hook.targets}
    assert every - loaded_later <= set(replaced.values()) <= every and set(replaced.values()) <= replaced.keys()


def targets(hooks) -> set[str]:
    return {target for hook in hooks for target in hook.targets}


@pytest.mark.parametrize("row", [*HOOKS, *MANUAL_PATCHES], ids=lambda row: getattr(row, "what", None) or row.targets[0])
def test_each_row_says_all(row):
    assert all((row.why, row.versions, row.off))
    for target in getattr(row, "targets", ()):
        module, path = target.split(":")
        assert module.partition(".")[0] in ("vllm", "vllm_ascend", "verl", "transformers") and path


@pytest.mark.parametrize("row", manual_patches.MANUAL_PATCHES + of_verl.MANUAL_PATCHES, ids=lambda row: row.by)
def test_the_function_of_each_manual_patch_exists(row):
    module, path = row.by.split(":")
    found = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    assert callable(found)


def changes_of_others(folder: Path, package: str) -> Iterator[tuple[str, str]]:
    """("module:function", the statement) of all that may replace something of another package."""
    for file in sorted(folder.rglob("*.py")):
        path = file.relative_to(folder).with_suffix("")
        module = ".".join((package, *path.parts)).removesuffix(".__init__")
        yield from _within(ast.parse(file.read_text()), module, [])


def _within(node: ast.AST, module: str, scope: list[str]) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        inner = (
            [*scope, child.name] if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else scope
        )
        if any(_sets(target) for target in _targets(child)) or _calls(child):
            yield f"{module}:{'.'.join(scope)}", ast.unparse(child)
        yield from _within(child, module, inner)


def _targets(node: ast.AST) -> Iterator[ast.AST]:
    found = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in found if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) else ():
        yield from target.elts if isinstance(target, ast.Tuple) else [target]


def _sets(target: ast.AST) -> bool:
    if isinstance(target, ast.Subscript):  # a table of another package, in capitals
        return isinstance(target.value, ast.Name) and target.value.id.isupper()
    own = isinstance(target, ast.Attribute) and ast.unparse(target.value) in ("self", "cls")
    return isinstance(target, ast.Attribute) and not own and target.attr not in DATA


def _calls(node: ast.AST) -> bool:
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if called == "setattr" and ast.unparse(node) in TENSORS:
        return False
    if called == "os.environ.setdefault":  # a name in words is another package's variable
        return isinstance(node.args[0], ast.Constant)
    return called in ("setattr", "sys.meta_path.append")


def unlisted(folder: Path) -> list[str]:
    listed = [row.by for row in MANUAL_PATCHES]
    found = changes_of_others(folder, f"ascend_quant.{folder.name}")
    return [f"{where}: {what}" for where, what in found if not any(_is_in(where, one) for one in listed)]


def _is_in(where: str, listed: str) -> bool:
    return where == listed or where.startswith(f"{listed}.") or where.startswith("ascend_quant.integrations.wrapping:")


def test_nothing_is_replaced_that_no_list_has():
    assert [line for room in ROOMS for line in unlisted(room)] == []
