"""By hand: what the verl commit of stack ascend-cann8.5 reads, from its source, which no package index has.

    git clone https://github.com/volcengine/verl SOURCE
    git -C SOURCE checkout bcb638649a50e58494a8ddd92085ad1174f674b8
    python tests/unit/data/verl_commit.py facts SOURCE    # writes verl_commit_dp.json and verl_commit_megatron.json
    python tests/unit/data/verl_commit.py check SOURCE    # every Ascend recipe through that verl's own loader, checks

The facts are all keys of its configuration, each with the type of its default ("?": none, or another key's). They let
tests refuse an unknown key and another type, as its command line does the one and its dataclasses the other; what it
checks beyond (values, combinations) only `check` sees. Neither starts a worker.
"""

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ENGINES = ("dp", "megatron")


def composed(source: Path, overrides: list[str]) -> Any:
    """The configuration that its main entry would get."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(source.resolve() / "verl" / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", overrides=overrides)


def types(tree: Any) -> Any:
    """The tree with types in place of values."""
    if isinstance(tree, dict) and tree:
        return {key: types(value) for key, value in tree.items()}
    unknown = tree is None or (isinstance(tree, str) and (tree.startswith("${") or tree == "???"))
    return "?" if unknown else type(tree).__name__


def write_facts(source: Path) -> None:
    from omegaconf import OmegaConf

    for engine in ENGINES:
        tree = OmegaConf.to_container(composed(source, [f"model_engine={engine}"]), resolve=False)
        (FOLDER / f"verl_commit_{engine}.json").write_text(json.dumps(types(tree), indent=1) + "\n")


def check(source: Path) -> None:
    sys.path[:0] = [str(source.resolve()), str(FOLDER.parents[2])]
    import verl
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    from launch.recipes import load, names, paths_of, resolve

    print("verl from", verl.__file__)
    for name in names():
        recipe = load(name)
        if recipe.stack.startswith("ascend"):
            without = {"verl.algorithm.filter_groups.enable": "false"} if "filter_groups" in str(recipe.verl) else {}
            recipe = load(name, changes={"stack": "ascend-cann8.5", **without})
            config = composed(source, list(resolve(recipe, paths_of(recipe, None, "/data", None)).overrides))
            validate_config(config, need_reference_policy(config), need_critic(config))
            omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
            print(name, "passes")


if __name__ == "__main__":
    {"facts": write_facts, "check": check}[sys.argv[1]](Path(sys.argv[2]))
