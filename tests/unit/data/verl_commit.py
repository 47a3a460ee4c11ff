"""By hand: what the verl commit of stack ascend-cann8.5 reads, from its source, which no package index has.

    git clone https://github.com/volcengine/verl SOURCE
    git -C SOURCE checkout bcb638649a50e58494a8ddd92085ad1174f674b8
    python tests/unit/data/verl_commit.py facts SOURCE    # writes verl_commit.csv
    python tests/unit/data/verl_commit.py check SOURCE    # every Ascend recipe through that verl's own loader, checks

The facts are all keys of the parts of its configuration that recipes set, with either engine, each with the type of its
default ("?": none, or another key's; empty: that engine has not the key). They let tests refuse an unknown key and
another type, as its command line does the one and its dataclasses the other; what it checks beyond (values,
combinations) only `check` sees. Neither starts a worker.
"""

import csv
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PARTS = ("actor_rollout_ref", "algorithm", "data", "ray_kwargs", "reward", "trainer")


def composed(source: Path, overrides: list[str]) -> Any:
    """The configuration that its main entry would get."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(source.resolve() / "verl" / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", overrides=overrides)


def types(tree: dict[str, Any], above: str = "") -> dict[str, str]:
    """The type of each key's default, by the key's whole name."""
    found = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            found |= types(value, f"{above}{key}.")
        else:
            unknown = value is None or (isinstance(value, str) and (value.startswith("${") or value == "???"))
            found[above + key] = "?" if unknown else type(value).__name__
    return found


def write_facts(source: Path) -> None:
    from omegaconf import OmegaConf

    dp, megatron = (
        types(OmegaConf.to_container(composed(source, [f"model_engine={engine}"]), resolve=False))
        for engine in ("dp", "megatron")
    )
    with (FOLDER / "verl_commit.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("key", "dp", "megatron"))
        keys = [key for key in {**dp, **megatron} if key.partition(".")[0] in PARTS]
        rows.writerows((key, dp.get(key, ""), megatron.get(key, "")) for key in keys)


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
            without = ["algorithm.filter_groups.enable=false"] if "filter_groups" in str(recipe.verl) else []
            recipe = load(name, ["stack=ascend-cann8.5", *without])
            config = composed(source, list(resolve(recipe, paths_of(recipe, None, "/data", None))))
            validate_config(config, need_reference_policy(config), need_critic(config))
            omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
            print(name, "passes")


if __name__ == "__main__":
    {"facts": write_facts, "check": check}[sys.argv[1]](Path(sys.argv[2]))
