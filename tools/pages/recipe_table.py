"""The table of docs/recipes.md and docs/recipes.zh.md: one row for recipes that differ only in their rollout.

`python -m tools.pages` generates it from the recipes. docs/low_precision.md has those with FP8 or INT4 rollouts.
"""

import re
from itertools import groupby

from launch.recipes import Recipe, load, names

HEADS = {
    "en": ("recipe", "`*` is", "devices", "stack", "engine memory per device, GiB", "memory per host, GiB"),
    "zh": ("recipe", "`*` 可为", "设备", "软件栈", "每设备分给引擎的 GiB", "每主机内存 GiB"),
}
VARIANT = re.compile(r"(?<=-)(?:bf16|int8)(?:-(?:ep|exact|kv8|r3))?(?=-|$)")


def table(language: str) -> str:
    """Return the table, in Markdown.

    Args:
        language: en or zh.
    """
    found = [load(name) for name in names()]
    shown = sorted((one for one in found if one.rollout.scheme in ("bf16", "int8")), key=_pattern)
    rows = [_row(pattern, list(group), language) for pattern, group in groupby(shown, _pattern)]
    lines = [f"| {' | '.join(row)} |" for row in (HEADS[language], *rows)]
    return "\n".join([lines[0], "|---" * len(HEADS[language]) + "|", *lines[1:], ""])


def _pattern(recipe: Recipe) -> str:
    return VARIANT.sub("*", recipe.name)


def _row(pattern: str, recipes: list[Recipe], language: str) -> tuple[str, ...]:
    before, after = pattern.split("*")
    variants = sorted(one.name.removeprefix(before).removesuffix(after) for one in recipes)
    ((nodes, devices, memory, stack),) = {
        (one.nodes, one.devices_per_node, one.memory.device, one.stack) for one in recipes
    }
    return (
        f"`{pattern}`",
        ("、" if language == "zh" else ", ").join(variants),
        f"{nodes} x {devices} x {memory} GiB",
        stack,
        f"{max(one.rollout.gpu_memory_utilization for one in recipes) * memory:.0f}",
        str(max(one.memory.host for one in recipes)),
    )
