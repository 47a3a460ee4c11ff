"""docker/docker-bake.hcl as data: each image's name, and what its Dockerfile is told, as buildx reads it."""

import re

from launch import ROOT

FILE = ROOT / "docker" / "docker-bake.hcl"
TEXT = FILE.read_text()
BLOCKS: dict[str, str] = dict(re.findall(r'^target "([^"]+)" \{\n(.*?)^\}', TEXT, re.MULTILINE | re.DOTALL))
IMAGES: dict[str, str] = {  # the name in the image's tag, by that of its target, which has no dots
    name: tag for name, block in BLOCKS.items() for tag in re.findall(r'tags\("([^"]+)"\)', block)
}
DEFAULTS: dict[str, str] = dict(re.findall(r'^variable "(\w+)" \{[^\n]*\n  default = "(.*)"', TEXT, re.MULTILINE))
UNKNOWN = "unknown"  # the digest of a base that is not pinned yet


def arguments(target: str) -> dict[str, str]:
    """What a target tells its Dockerfile: its own arguments, and those of the targets that it inherits from."""
    block = re.sub(r"(?m)^\s*#.*\n| # .*$", "", BLOCKS[target])
    inherited: dict[str, str] = {}
    for line in re.findall(r"^  inherits += \[(.*)\]$", block, re.MULTILINE):
        for name in re.findall(r'"([^"]+)"', line):
            inherited |= arguments(name)
    own = dict(re.findall(r'^    (\w+) += "?([^"\n]*)"?$', block, re.MULTILINE))
    own = {name: re.sub(r"\$\{(\w+)\}", lambda found: DEFAULTS[found[1]], value) for name, value in own.items()}
    for name, items in re.findall(r'^    (\w+) += join\(" ", \[\n(.*?)^    \]\)$', block, re.MULTILINE | re.DOTALL):
        own[name] = " ".join(re.findall(r'"([^"]+)"', items))
    return inherited | own


def dockerfile(target: str) -> str:
    """The path of a target's Dockerfile, or of the one that it inherits."""
    own = re.findall(r'^  dockerfile += "(.+)"$', BLOCKS[target], re.MULTILINE)
    parents = re.findall(r'"([^"]+)"', "".join(re.findall(r"inherits += \[(.*)\]", BLOCKS[target])))
    return next((found for found in (*own, *map(dockerfile, parents)) if found), "")


def sources(target: str) -> list[str]:
    """The list that docker/steps/sources.sh gets."""
    return arguments(target).get("SOURCES", "").split()


def of_stack(stack: str) -> list[str]:
    """The targets of a stack."""
    return [name for name in IMAGES if arguments(name)["STACK"] == stack]
