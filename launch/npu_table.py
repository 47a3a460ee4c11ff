"""The table of docs/recipes.md and docs/recipes.zh.md that says what each recipe of the Ascend stacks runs with.

`python -m launch.pages` makes it, of what a launch computes: verl's overrides, a host's environment, the memory that a
recipe asks for.
"""

from ascend_quant.integrations.verl.training import attention_settings as attention
from launch.environment import ASCEND, node_environment
from launch.inventory import Ports
from launch.plan.job import last_value, values
from launch.recipes import Recipe, load, names, paths_of, resolve
from launch.recipes.verl import EAGER, TRANSFORMER

HEADS = {
    "en": (
        "recipe",
        "trainer's attention",
        "rollouts, 9.1",
        "rollouts, 8.5",
        "`HCCL_OP_EXPANSION_MODE`",
        "`HCCL_CONNECT_TIMEOUT`, s",
        "`TASK_QUEUE_ENABLE`, 9.1, 8.5",
        "GiB a device, the engine's",
        "GiB a host",
    ),
    "zh": (
        "recipe",
        "训练端的注意力",
        "rollout，9.1",
        "rollout，8.5",
        "`HCCL_OP_EXPANSION_MODE`",
        "`HCCL_CONNECT_TIMEOUT`，秒",
        "`TASK_QUEUE_ENABLE`，9.1、8.5",
        "每设备 GiB，其中引擎",
        "每主机 GiB",
    ),
}
WORDS = {"graphs": "图", "eager": "eager", "not set": "不设置", "MindSpeed's": "MindSpeed"}
OF_HOST = {"address": "", "nic": "", "family": "ipv4", "devices": "", "places": ""}  # not of a recipe
OLDER = {"verl.algorithm.filter_groups.enable": "false"}  # the verl of ascend-cann8.5 has no dynamic sampling


def table(language: str) -> str:
    """Make the table of the Ascend stacks' recipes, in Markdown.

    Args:
        language: en, zh.
    """
    found = [_row(name) for name in names() if load(name).stack in ASCEND]
    if language == "zh":
        found = [tuple(WORDS.get(cell, cell).replace(", ", "、") for cell in row) for row in found]
    lines = [f"| {' | '.join(row)} |" for row in (HEADS[language], *found)]
    return "\n".join([lines[0], "|---" * len(HEADS[language]) + "|", *lines[1:], ""])


def _row(name: str) -> tuple[str, ...]:
    older, newer = (
        load(name, changes={"stack": stack, **more}) for stack, more in zip(ASCEND, (OLDER, {}), strict=True)
    )
    run, former = _environment(newer), _environment(older)
    memory = newer.memory
    return (
        name,
        _attention(newer),
        _graphs(newer),
        _graphs(older),
        run.get("HCCL_OP_EXPANSION_MODE", "not set"),
        run["HCCL_CONNECT_TIMEOUT"],
        f"{run['TASK_QUEUE_ENABLE']}, {former['TASK_QUEUE_ENABLE']}",
        f"{memory.device}, {newer.rollout.gpu_memory_utilization * memory.device:.0f}",
        str(memory.host),
    )


def _overrides(recipe: Recipe) -> tuple[str, ...]:
    return resolve(recipe, paths_of(recipe, None, "data", None)).overrides


def _attention(recipe: Recipe) -> str:
    if recipe.backend == "megatron":
        used = last_value(_overrides(recipe), f"{TRANSFORMER}.use_flash_attn", "false")
        return "MindSpeed's" if used == "true" else "Megatron's"
    return last_value(_overrides(recipe), attention.NAME_KEY, attention.FLASH)


def _graphs(recipe: Recipe) -> str:
    return "eager" if last_value(_overrides(recipe), EAGER, "false") == "true" else "graphs"


def _environment(recipe: Recipe) -> dict[str, str]:
    own = OF_HOST | values(_overrides(recipe), Ports())
    return {one.name: one.value for one in node_environment(recipe.stack, own, [("recipe", recipe.environment)])}
