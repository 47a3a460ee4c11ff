"""verl's configuration as Hydra has it: names of its parts, trees as dotted keys, and values on its command line.

Hydra's quotes are unlike JSON's: a backslash stays one.
"""

import re
from collections.abc import Iterator
from typing import Any

# The parts of verl's tree that several files here use, by their dotted keys.
MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
POLICY_LOSS = f"{ACTOR}.policy_loss"
TRANSFORMER = f"{ACTOR}.megatron.override_transformer_config"
DATA_PARALLEL = f"{ACTOR}.megatron.override_ddp_config"
OPTIMIZER = f"{ACTOR}.optim.override_optimizer_config"
REFERENCE = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
CORRECTION = "algorithm.rollout_correction"
ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
WORDS = ("null", "true", "false", "nan", "inf")  # hydra's, in any case


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """{"a": {"b": 1}} -> ("a.b", 1). An empty mapping is a value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def text(value: Any) -> str:
    """A value: a list, a string, a number, true, false or null.

    Raises:
        TypeError: another kind of value.
    """
    if isinstance(value, list):
        return f"[{','.join(map(text, value))}]"
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) and value.lower() not in WORDS else quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if value == {}:
        return "{}"
    raise TypeError(f"{str(value)[:80]!r} ({type(value).__name__}) cannot stand on a command line")


def quoted(value: str) -> str:
    """In single quotes; backslashes count only before a quote, where hydra wants each of them twice."""
    inner = re.sub(r"(\\*)'", r"\1\1\\'", value)
    slashes = len(inner) - len(inner.rstrip("\\"))
    return f"'{inner}{slashes * chr(92)}'"
