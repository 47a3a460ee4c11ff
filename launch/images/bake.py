"""docker/docker-bake.hcl: one target an image, with every pin that its Dockerfile is told. Written from stacks.yaml.

`python -m launch.images.bake` writes it anew; `images lock` does so too.
"""

import json
from collections.abc import Mapping

from launch.images.targets import Target, targets
from launch.root import ROOT

FILE = ROOT / "docker" / "docker-bake.hcl"
DOCKERFILES = {"none": "cpu", "npu": "ascend", "gpu": "cuda"}
HEADER = """\
# What `docker buildx bake` builds, from docker/stacks.yaml by `python -m launch.images.bake`: do not edit.
#   docker buildx bake -f docker/docker-bake.hcl TARGET ..      from the repository's root; `run.sh images build` also
#                                                               checks what came out, and names it
# A base whose digest says `unknown` is refused at once: the command in it, on a connected machine, fills it in.

variable "VERSION" {
  default = "unknown"
}

variable "REVISION" {
  default = "unknown"
}
"""


def text() -> str:
    """The whole file."""
    found = targets()
    npu = [name for name, target in found.items() if target.pins.devices == "npu"]
    groups = {"default": ["cpu"], "ascend": npu, "all": list(found)}
    blocks = [_group(name, [found[target] for target in members]) for name, members in groups.items()]
    return "\n".join([HEADER, *blocks, *(_target(target) for target in found.values())])


def arguments(target: Target) -> dict[str, str]:
    """What the Dockerfile of a target is told: nothing that is empty, nothing that it does not ask for."""
    pins = target.pins
    told = {
        "BASE": target.base if "@" in target.base else _unknown(target),
        "STACK": target.stack,
        "CHIP": target.chip,
        "APT_SNAPSHOT": pins.apt_snapshot,
        "PYTHON_VERSION": pins.python if pins.devices != "none" else None,  # the CPU image's base brings Debian's own
        "SOC_VERSION": pins.soc.get(target.chip),
        **pins.arguments,
        "SOURCES": " ".join(_sources(target)),
    }
    return {name: value for name, value in told.items() if value}


def _sources(target: Target) -> list[str]:
    """NAME=REPOSITORY@COMMIT, and #VERSION where the stack has one: what is fetched by commit has no tag to tell it.

    And NAME/PLACE=ADDRESS#sha256:DIGEST for each archive that its build would fetch.
    """
    found = []
    for name, source in target.pins.sources.items():
        version = target.pins.packages.get(name)
        found.append(f"{name}={source.repository}@{source.commit}" + (f"#{version}" if version else ""))
        found += [f"{name}/{place}={file.address}#sha256:{file.sha256}" for place, file in source.files.items()]
    return found


def _unknown(target: Target) -> str:
    """No engine takes this for a digest: a build stops before it fetches anything, and says this name."""
    return f"{target.base}@sha256:unknown-run-python-m-launch-images-lock-{target.stack}"


def _group(name: str, members: list[Target]) -> str:
    return f'group "{name}" {{\n  targets = {json.dumps([target.bake for target in members])}\n}}\n'


def _target(target: Target) -> str:
    values = {name: json.dumps(value) for name, value in arguments(target).items()}
    lines = [
        f'  dockerfile = "docker/Dockerfile.{DOCKERFILES[target.pins.devices]}"',
        f'  tags = ["ascend-quant:{target.name}"]',
        "  args = {",
        *_aligned(values | {"VERSION": "VERSION", "REVISION": "REVISION"}),
        "  }",
    ]
    return f'target "{target.bake}" {{\n' + "".join(f"{line}\n" for line in lines) + "}\n"


def _aligned(values: Mapping[str, str]) -> list[str]:
    width = max(map(len, values))
    return [f"    {name:{width}} = {value}" for name, value in values.items()]


if __name__ == "__main__":
    FILE.write_text(text())
