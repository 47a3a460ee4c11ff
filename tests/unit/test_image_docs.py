"""docs/images.md: its commands are understood, and its tables whole in both languages."""

import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from bake_file import IMAGES, arguments
from command_cases import understood

from launch.cluster.inventory import Inventory, load, names
from launch.plan.start import ASCEND_DEVICES, ASCEND_DRIVER, ASCEND_FILES, RDMA_DEVICES, bind, limits

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("images.md", "images.zh.md")}
ENGLISH, CHINESE = PAGES.values()
OTHERS = ("CONTRIBUTING.md", "docs/first_day.md", "docs/troubleshooting.md", "docs/troubleshooting.zh.md")
SHOWING = (ENGLISH, *((ROOT / name).read_text() for name in OTHERS))
ENTRY = ROOT / "docker/entrypoint.sh"
IMAGE = " ascend-quant:"


def commands(text: str, start: str = "") -> list[str]:
    """The lines of the code blocks that begin so, without comments; lines that go on are one."""
    code = "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    lines = [" ".join(line.partition(" # ")[0].split()) for line in code.splitlines() if line.strip()]
    return [line for line in lines if line.startswith(start)]


def first_cells(text: str) -> list[list[str]]:
    """What stands in `marks` in the first cell of each row of the tables."""
    return [re.findall("`([^`]+)`", line.split(" | ")[0]) for line in text.splitlines() if line.startswith("| ")]


def verbs() -> list[str]:
    """Those of the images."""
    return re.findall(r"VERBS=\(([^)]*)\)", ENTRY.read_text())[0].split()


def test_the_tables_of_both_languages_are_of_the_same():
    assert first_cells(ENGLISH) == first_cells(CHINESE)


def test_what_is_baked_are_targets():
    baked = [line for text in SHOWING for line in commands(text) if "buildx bake" in line]
    assert len(baked) >= 6
    for line in baked:
        words = shlex.split(line.partition("docker/docker-bake.hcl ")[2])
        named = [word for before, word in pairwise(["", *words]) if not word.startswith("--") and before != "--set"]
        assert named and set(named) <= set(IMAGES), line


def test_containers_are_of_targets_and_are_given_verbs():
    runs = [line for text in SHOWING for line in commands(text, "docker run")]
    assert len(runs) >= 8
    for line in runs:
        target, *words = shlex.split(line.split(IMAGE)[1].partition(" > ")[0])
        assert target in IMAGES.values() and words[0] in {*verbs(), "python"}
        understood(words)


def test_containers_with_devices_get_what_the_launcher_gives_them():
    (npus,) = [line for line in commands(ENGLISH, "docker run") if "ascend-cann" in line]
    (gpus,) = [line for line in commands(ENGLISH, "docker run") if "cuda13" in line]
    wanted = {f"--device={path}" for path in ASCEND_DEVICES} | {bind(f"{ASCEND_DRIVER}:{ASCEND_DRIVER}:ro")}
    assert wanted | set(limits("ascend-cann9.1")) <= set(npus.split())
    assert f"$(there {' '.join(ASCEND_FILES)})" in npus
    assert "$(printf -- ' --device=%s' /dev/davinci[0-9]*)" in npus
    assert set(limits("cuda13")) | {"--gpus"} <= set(gpus.split())
    for page in PAGES.values():  # for hosts that have them
        assert f"--device {RDMA_DEVICES}`" in page


def test_a_file_is_mounted_where_a_host_has_it(tmp_path: Path):
    """The pages' function, in a shell: of images.md, and of the hour on one NPU."""
    texts = [*PAGES.values(), *((ROOT / "docs" / name).read_text() for name in ("ascend.md", "ascend.zh.md"))]
    (function,) = {one for text in texts for one in re.findall(r"^there\(\) \{.*\}$", text, re.MULTILINE)}
    assert all(f"$(there {' '.join(ASCEND_FILES)})" in text for text in texts)
    (tmp_path / "npu-smi").touch()
    script = f"{function}\nthere {tmp_path}/npu-smi {tmp_path}/missing"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["--mount", bind(f"{tmp_path}/npu-smi:{tmp_path}/npu-smi:ro")]


def test_services_and_their_verbs_exist():
    services = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
    for line in commands(ENGLISH, "docker compose"):
        words = shlex.split(line)
        _, verb, *options = words[next(place for place, word in enumerate(words) if word in services) :]
        assert verb in verbs()
        understood([verb, *options])


def test_the_tables_have_every_image_and_every_verb():
    named = [word for row in first_cells(ENGLISH) for word in row]
    assert {word.removeprefix(IMAGE.strip()) for word in named if word.startswith(IMAGE.strip())} == set(
        IMAGES.values()
    )
    assert set(verbs()) - {"help"} <= set(named)


@pytest.mark.parametrize("inventory", [one for one in map(load, names()) if one.image], ids=lambda one: one.image)
def test_inventories_name_images_of_their_stack(inventory: Inventory):
    name, _, target = inventory.image.partition(":")
    assert f" {name}:" == IMAGE and arguments(target.replace(".", "_"))["STACK"] == inventory.stack
