"""docker/compose.yaml: a node gets what the launcher gives a host of a cluster; images and verbs exist."""

import re
import shlex
from collections.abc import Container
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from bake_file import IMAGES

from launch.cluster.inventory import Devices, this_machine
from launch.plan.start import ASCEND_ADDRESSES, NPU_SMI, RDMA_DEVICES, container

ROOT = Path(__file__).parents[2]
SERVICES = {"cpu": "cpu", "cuda": "cuda13", "ascend-a2": "ascend-cann9.1", "ascend-a3": "ascend-cann9.1"}
NPUS = {"ascend-a2": 8, "ascend-a3": 16}
NETWORK = (ASCEND_ADDRESSES, RDMA_DEVICES)  # not every host has one of the devices


class Overriding(yaml.SafeLoader):
    """Reads what Compose shall put in place of a list, and not behind it, as ("!override", list)."""


Overriding.add_constructor("!override", lambda loader, node: ("!override", loader.construct_sequence(node)))


def services() -> dict[str, dict[str, Any]]:
    """The services, with `extends` as Compose does it: lists are put together, all else is replaced."""
    found = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
    for name, service in found.items():
        if "extends" in service:
            of = found[service.pop("extends")["service"]]
            lists = {key: [*of[key], *value] for key, value in service.items() if isinstance(value, list) and key in of}
            found[name] = of | service | lists
    return found


def launched(stack: str, lacks: Container[str] = NETWORK, devices: Devices = "auto") -> list[str]:
    """The options of the launcher's docker run on a host of the stack, which `lacks` these paths and has the others."""
    inventory = this_machine(stack).model_copy(update={"image": "image", "project": None})
    line = container(inventory, 0, [], None, 64, devices).partition(" image ")[0]
    there = re.compile(r"\$\(test ! -e (\S+) \|\| echo ([^)]*)\)")
    return shlex.split(there.sub(lambda found: "" if found[1] in lacks else found[2], line))


def values(options: list[str], name: str) -> list[str]:
    """What stands behind an option."""
    return [value for option, value in pairwise(options) if option == name]


def binds(mounts: list[dict[str, Any]]) -> set[str]:
    """Compose's mounts as the launcher writes them."""
    return {
        f"type=bind,source={mount['source']},target={mount['target']}" + ",readonly" * mount.get("read_only", False)
        for mount in mounts
    }


def test_there_is_a_service_for_each_kind_of_device():
    assert set(services()) == set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_targets(name: str):
    image = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", services()[name]["image"])
    repository, _, tag = image.partition(":")
    assert repository == "ascend-quant" and tag in IMAGES.values()


@pytest.mark.parametrize("name", SERVICES)
def test_commands_are_verbs_of_run_sh(name: str):
    verbs = re.findall(r"^readonly COMMANDS=\((.*)\)$", (ROOT / "run.sh").read_text(), re.M)[0].split()
    assert services()[name]["command"][0] in verbs


def of_launcher(stack: str, npus: list[int]) -> list[str]:
    """The device files that the launcher gives a container with these NPUs."""
    options = launched(stack, devices=npus)
    return [one.removeprefix("--device=") for one in options if one.startswith("--device=")]


@pytest.mark.parametrize("name", NPUS)
def test_one_npu_is_mapped_in_place_of_all(name: str):
    one = yaml.load((ROOT / "docker/compose.npu.yaml").read_text(), Overriding)["services"]
    assert one.keys() == NPUS.keys()
    override, devices = one[name]["devices"]
    assert override == "!override"  # else Compose would add to the others
    assert [path.replace("${NPU:-0}", "3") for path in devices] == of_launcher(SERVICES[name], [3])


@pytest.mark.parametrize("name", SERVICES)
def test_devices_are_those_of_the_launcher(name: str):
    options, service = launched(SERVICES[name]), services()[name]
    npus = list(range(NPUS.get(name, 0)))
    assert service.get("devices", []) == of_launcher(SERVICES[name], npus)
    assert ("--gpus" in options) == ("deploy" in service) == (name == "cuda")


@pytest.mark.parametrize("name", SERVICES)
def test_the_driver_comes_from_where_the_launcher_takes_it(name: str):
    mounts = services()[name]["volumes"]
    mounts = [mount | {"source": re.sub(r"\$\{NPU_SMI:-(.*)\}", r"\1", mount["source"])} for mount in mounts]
    driver = [mount for mount in mounts if not mount["source"].startswith("${")]
    assert binds(driver) == set(values(launched(SERVICES[name], {*NETWORK, NPU_SMI[1]}), "--mount"))
    assert all(mount["bind"] == {"create_host_path": False} for mount in mounts)


@pytest.mark.parametrize("name", SERVICES)
def test_limits_are_those_of_the_launcher(name: str):
    service, options = services()[name], launched(SERVICES[name])
    limits = {f"{key}={of['soft']}:{of['hard']}" for key, of in service.get("ulimits", {}).items()}
    assert limits == set(values(options, "--ulimit"))
    assert [service["shm_size"].removesuffix("b")] == values(options, "--shm-size")
    assert service.get("init", False) == ("--init" in options)


@pytest.mark.parametrize("name", SERVICES)
def test_only_tmp_and_the_folders_of_the_run_can_be_written(name: str):
    service = services()[name]
    assert service["read_only"] is True and [one.partition(":")[0] for one in service["tmpfs"]] == ["/tmp"]
    written = {mount["target"] for mount in service["volumes"] if not mount.get("read_only")}
    assert written == {"/work/data", "/work/runs"}


@pytest.mark.parametrize(("file", "name"), [("rdma", "cuda"), ("hccn", "ascend-a2"), ("hccn", "ascend-a3")])
def test_what_only_some_hosts_have_is_in_a_file_of_its_own(file: str, name: str):
    """With it, a service has what the launcher gives to hosts that have a network of the devices."""
    more = yaml.safe_load((ROOT / f"docker/compose.{file}.yaml").read_text())["services"]
    assert set(more) <= set(SERVICES)
    of_the_network = set(launched(SERVICES[name], lacks=())) - set(launched(SERVICES[name]))
    given = binds(more[name].get("volumes", [])) | {f"--device={path}" for path in more[name].get("devices", [])}
    assert given == of_the_network != set()
    assert values(launched(SERVICES[name]), "--network") == [more[name]["network_mode"]]
