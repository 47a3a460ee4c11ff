"""docs/first_day.md and cluster.md: commands and inventories are understood; both languages show the same."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from bake_file import IMAGES
from command_cases import commands, understood

from launch import recipes
from launch.cluster.inventory import load
from launch.plan.job import places

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = (
    "".join((ROOT / "docs" / f"{name}{language}.md").read_text() for name in ("first_day", "cluster"))
    for language in ("", ".zh")
)
FOLDERS = {"gsm8k", "dapo-math-17k", "addition"}  # of `run.sh data`


def sections(text: str) -> dict[str, str]:
    """The parts of the pages, by their headings."""
    return dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.DOTALL))


def blocks(text: str, language: str) -> list[str]:
    """The code in a language; lines that go on are one."""
    return [block.replace("\\\n", " ") for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]


ALL = commands(ENGLISH)


def of_run_sh() -> list[list[str]]:
    """What follows ./run.sh, also where another program starts it, a container's verb and a pod's."""
    found = [words[words.index("./run.sh") + 1 :] for words in ALL if "./run.sh" in words]
    services = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
    for words in ALL:
        if words[:2] == ["docker", "compose"]:
            (place,) = [place for place, word in enumerate(words) if word in services]
            found.append(words[place + 1 :])
    return [*found, pod()["args"]]


def pod() -> dict:
    (text,) = [block for block in blocks(ENGLISH, "yaml") if "kind: Pod" in block]
    (container,) = yaml.safe_load(text)["spec"]["containers"]
    return container


def test_both_languages_have_the_same_parts_and_sizes():
    assert len(sections(ENGLISH)) == len(sections(CHINESE))
    for english, chinese in zip(sections(ENGLISH).values(), sections(CHINESE).values(), strict=True):
        sizes = [sorted(re.findall(r"[\d.]+ (?:GB|MB|GiB|MiB)", text)) for text in (english, chinese)]
        assert sizes[0] == sizes[1]


@pytest.mark.parametrize("words", of_run_sh(), ids=" ".join)
def test_verbs_and_options_are_those_of_run_sh(words: list[str]):
    understood(words)
    verb, name = words[:2] if len(words) > 1 else (words[0], None)
    if verb == "train":
        given = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        recipe = recipes.load(name, given + (words[words.index("--") + 1 :] if "--" in words else []))
        assert "--cluster" in words or recipe.nodes == 1
    elif verb == "data":
        assert name in FOLDERS


def inventories(folder: Path) -> dict[str, Path]:
    """The inventories of the pages."""
    found = {f"{name}.yaml": folder / f"{name}.yaml" for name in ("four", "cluster", "two")}
    texts = [block for block in blocks(ENGLISH, "yaml") if block.startswith("stack:")]
    for file, text in zip(found.values(), texts, strict=True):
        file.write_text(text)
    return found


def test_inventories_are_understood(tmp_path: Path):
    files = inventories(tmp_path)
    four, example, two = (load(str(file)) for file in files.values())
    assert (len(two.hosts), len(four.hosts), len(example.hosts)) == (2, 4, 2)
    assert four.image == f"ascend-quant:{four.stack}" and four.stack in IMAGES.values()


def test_what_the_page_has_a_reader_make_in_the_checkout_is_git_s_to_ignore():
    """An image of a checkout with other files would not be that of its commit."""
    made = {"smoke.json", ".venv", "runs"}
    for words in ALL:
        made |= {words[place + 1] for place, word in enumerate(words[:-1]) if word in ("--to", "--local-dir")}
        made |= {*words[2:]} if words[:2] == ["mkdir", "-p"] else set()
    inside = sorted(f"{name}/x" for name in made if not name.startswith("/"))
    assert len(inside) >= 5
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git")
    said = subprocess.run(["git", "check-ignore", *inside], cwd=ROOT, capture_output=True, text=True)
    assert said.stdout.split() == inside


@pytest.mark.parametrize("place", range(2))
def test_a_cluster_trains_on_the_data_that_the_page_has_made(place: int, tmp_path: Path):
    """Where `data --to` writes is, behind the inventory's mounts, where the run looks: by --data, or by default."""
    with_hosts = [text for text in sections(ENGLISH).values() if "--cluster" in text]
    section = [text for text in with_hosts if "./run.sh data dapo-math-17k" in text][place]
    words = [one[one.index("./run.sh") + 1 :] for one in commands(section) if "./run.sh" in one]
    (made,) = [one[one.index("--to") + 1] for one in words if one[0] == "data"]
    train = next(one for one in words if one[0] == "train")
    machines = load(str(inventories(tmp_path)[train[train.index("--cluster") + 1]]))
    for mount in machines.mounts:
        outside, inside, *_ = mount.split(":")
        made = made.replace(outside, inside, 1)
    given = train[train.index("--data") + 1] if "--data" in train else None
    assert places(recipes.load(train[1]), machines, "r", False, data=given).data == made
