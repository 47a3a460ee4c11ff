"""Asks this interpreter's torch_npu whether it takes recorded calls: python replay.py CALLS.json, verdicts as JSON.

Each call runs on meta tensors through the version's own schema and Meta kernel. A verdict is "" for a call that is
taken, else one line that says why not.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from npu_host import stubs

stubs.start()

import torch  # noqa: E402
import torch_npu  # noqa: E402, F401  registers the schemas and the Meta kernels

from npu_host import dtypes  # noqa: E402


def main() -> None:
    """Prints one verdict a call."""
    print(json.dumps([verdict(call) for call in json.loads(Path(sys.argv[1]).read_text())]))


def verdict(call: dict) -> str:
    """What this version says of one recorded call."""
    library, _, rest = call["operator"].partition("::")
    packet, _, overload = rest.partition(".")
    operator = getattr(getattr(getattr(torch.ops, library), packet, None), overload or "default", None)
    if operator is None:
        return "no such operator"
    known = {argument.name for argument in operator._schema.arguments}
    unknown = [name for name in call["arguments"] if name not in known and name not in call["defaults"]]
    if unknown:
        return f"no argument {', '.join(unknown)}"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "Meta"):
        return ""
    dtype_is_number = {a.name: "int" in str(a.type) for a in operator._schema.arguments}
    arguments = {
        name: _decode(value, dtype_is_number[name]) for name, value in call["arguments"].items() if name in known
    }
    try:
        operator(**arguments)
    except Exception as error:  # a verdict, whatever it is
        return " ".join(str(error).split("[ERROR]")[0].split())
    return ""


def _decode(value, as_number: bool):
    if isinstance(value, list):
        return [_decode(item, as_number) for item in value]
    if not isinstance(value, dict):
        return value
    dtype = getattr(torch, value["dtype"])
    if "shape" in value:
        return torch.empty_strided(value["shape"], value["stride"], dtype=dtype, device="meta")
    return next(code for code, known in dtypes.BY_CODE.items() if known == dtype) if as_number else dtype


if __name__ == "__main__":
    main()
