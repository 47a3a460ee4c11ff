"""What was called: operators, dtypes, shapes, formats, and who called. Makes docs/npu_ops.md from it.

Calls that differ in sizes alone count once. `write_calls` saves them for replay.py, which asks
another version of torch_npu whether it takes them; `table` puts both into a Markdown table.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import torch

from npu_host import dtypes, formats

CALLERS = ("ascend_quant", "vllm_ascend")  # packages whose calls are worth a row; the rest are the harness's own tests
PROBES = "ascend_quant.smoke."  # which ask operators as tests do
DTYPE_ARGUMENTS = {"dtype", "dst_type"}
SIZES = {"active_num", "expert_num", "active_expert_range", "k"}  # numbers that are sizes; others say what is done
HEADER = """# NPU operators, and what a refit costs

Which operators the code calls on NPUs, and how many calls, bytes and waits a refit takes. **Not run on hardware.**
Written by `{command}`.

## Operators
What the tests called on host memory, with the types and dimensions of the arguments. All calls keep the rules of Atlas
A2 and A3 (`tests/npu_host/rules.py`). The last columns say whether torch_npu takes them.

| operator | called by | arguments | {versions} |
|---|---|---|{dashes}|
"""


@dataclass(frozen=True)
class Call:
    """One kind of call.

    Attributes:
        operator: "npu::npu_quant_matmul".
        caller: the module of CALLERS' packages that made it, or "" for a test.
        arguments: as JSON, by name; see `_encode`.
        defaults: names of the arguments that have the schema's default.
    """

    operator: str
    caller: str
    arguments: dict = field(hash=False)
    defaults: tuple[str, ...]


calls: dict[tuple, Call] = {}


def record(schema: torch.FunctionSchema, bound: SimpleNamespace) -> None:
    """Notes a call that succeeded."""
    arguments = {argument.name: _encode(argument.name, getattr(bound, argument.name)) for argument in schema.arguments}
    defaults = tuple(
        argument.name
        for argument in schema.arguments
        if argument.has_default_value() and arguments[argument.name] == _encode(argument.name, argument.default_value)
    )
    name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
    caller = _caller()
    kind = json.dumps([_without_sizes(name, value) for name, value in arguments.items()])
    calls.setdefault((name, caller, kind), Call(name, caller, arguments, defaults))


def write_calls(path: Path) -> None:
    """Saves the calls as JSON, for replay.py."""
    path.write_text(json.dumps([vars(call) for call in calls.values()]))


def table(command: str, replayed: dict[str, list[str]]) -> str:
    """The operators that CALLERS called as a Markdown table.

    Args:
        command: what made the table; it goes into the text.
        replayed: for each version of torch_npu, what replay.py said of each call ("" for a call that it takes).
    """
    found: dict[str, list[tuple[Call, list[str]]]] = {}
    for number, call in enumerate(calls.values()):
        if call.caller:
            found.setdefault(call.operator, []).append((call, [said[number] or "yes" for said in replayed.values()]))
    rows = [_row(operator, *zip(*found[operator], strict=True)) for operator in sorted(found)]
    head = HEADER.format(command=command, versions=" | ".join(replayed), dashes="---|" * (len(replayed) - 1) + "---")
    return head + "".join(rows) + "\n"


def _row(operator: str, made: Sequence[Call], verdicts: Sequence[list[str]]) -> str:
    """The row of an operator: packages that call it, what each argument was, and what each version said."""
    arguments: dict[str, set[str]] = {}
    for call in made:
        for name, value in call.arguments.items():
            if name not in call.defaults and _is_typed(value):
                arguments.setdefault(name, set()).add(shown_value(value))
    own = operator.startswith("npu::")
    cells = (
        f"`{operator}`",
        ", ".join(sorted({call.caller.partition(".")[0] for call in made})),
        "; ".join(f"{name}: {' or '.join(sorted(arguments[name]))}" for name in sorted(arguments)),
        *("; ".join(sorted(set(said))) if own else "not torch_npu's" for said in zip(*verdicts, strict=True)),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _is_typed(value) -> bool:
    """Whether an encoded argument is a tensor, a dtype, a name, or a list of these; numbers are left out."""
    return isinstance(value[0] if isinstance(value, list) and value else value, dict | str)


def shown_value(value) -> str:
    """An encoded argument in a word, a tensor as `int8 2-D NZ`."""
    if isinstance(value, list):
        return "[" + ", ".join(shown_value(item) for item in value) + "]"
    if isinstance(value, dict) and "shape" in value:
        mark = "" if value["format"] == "ND" else " " + value["format"]
        return f"{value['dtype']} {len(value['shape'])}-D{mark}"
    return value["dtype"] if isinstance(value, dict) else str(value)


def _encode(name: str, value):
    """An argument as JSON: a tensor by dtype, shape, stride and format; a dtype by its name."""
    if isinstance(value, torch.Tensor):
        return {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "stride": list(value.stride()),
            "format": formats.NAMES[formats.format_of(value)],
        }
    if isinstance(value, (list, tuple)):
        return [_encode(name, item) for item in value]
    if isinstance(value, torch.dtype) or (value is not None and (name in DTYPE_ARGUMENTS or name.endswith("_dtype"))):
        return {"dtype": str(dtypes.from_code(value)).removeprefix("torch.")}
    return value


def _without_sizes(name: str, value):
    if name in SIZES:
        return name
    if isinstance(value, list):
        return [_without_sizes(name, item) for item in value]
    if isinstance(value, dict) and "shape" in value:
        contiguous = value["stride"] == _contiguous_stride(value["shape"])
        return [value["dtype"], len(value["shape"]), value["format"], contiguous]
    return value


def _contiguous_stride(shape: list[int]) -> list[int]:
    return list(torch.empty(shape, device="meta").stride())


def _caller() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in CALLERS and not module.startswith(PROBES):
            return module
        frame = frame.f_back
    return ""
