"""verl's configuration for recipes: its parts, values on its command line, and its versions.

| stack          | verl                                        | its vLLM |
|----------------|---------------------------------------------|----------|
| ascend-cann8.5 | 0.8.0.dev, commit bcb638649a50 (April 2026) | 0.10.1   |
| all others     | 0.9.1                                       | 0.23     |

Both versions read the same configuration tree. Both have settings
that they read nowhere: who sets one gets no error and no effect. Those of them that training scripts set are here, with
the settings that are read in their place, if any; tests/engine/verl_reads.py found them.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from ascend_quant.recipes.keys import ACTOR, MODEL, REFERENCE, ROLLOUT
from launch import LaunchError

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
WORDS = ("null", "true", "false", "nan", "inf")  # hydra's, in any case

UNREAD = {  # by both; and what is read in their place
    f"{ACTOR}.use_torch_compile": (
        f"{ACTOR}.fsdp_config.use_torch_compile",
        f"{REFERENCE}.fsdp_config.use_torch_compile",
    ),
    f"{REFERENCE}.use_torch_compile": (f"{REFERENCE}.fsdp_config.use_torch_compile",),
    f"{ACTOR}.use_fused_kernels": (f"{MODEL}.use_fused_kernels",),
    f"{ROLLOUT}.multi_turn.num_repeat_rollouts": (f"{ROLLOUT}.n",),
    "actor_rollout_ref.nccl_timeout": (),
}


def text(value: Any) -> str:
    """Format a value as hydra reads it: a list, a mapping, a string, a number, true, false or null.

    Raises:
        LaunchError: another kind of value, as YAML's dates are.
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
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{text(one)}' for key, one in value.items())}}}"
    raise LaunchError(f"{str(value)[:80]!r} ({type(value).__name__}) cannot be written on a command line")


def quoted(value: str) -> str:
    """Quote in single quotes; backslashes count only before a quote, where hydra, unlike JSON, wants each twice."""
    inner = re.sub(r"(\\*)'", r"\1\1\\'", value)
    slashes = len(inner) - len(inner.rstrip("\\"))
    return f"'{inner}{slashes * chr(92)}'"


@dataclass(frozen=True)
class Verl:
    """Description of one version of verl.

    Attributes:
        name: for people.
        main: the module that starts a run. Ours logs every refit and proves what was sent; it needs verl's trainer v1.
        absent: parts of the newer version's tree that this one lacks, and what they are for.
        unread: settings of its tree that its sources read nowhere, and those that are read in their place.
    """

    name: str
    main: str
    absent: dict[str, str] = field(default_factory=dict)
    unread: dict[str, tuple[str, ...]] = field(default_factory=lambda: UNREAD)

    def lacks(self, key: str) -> str | None:
        """Return the part that holds a setting, if this version has no such part."""
        return next((part for part in self.absent if key == part or key.startswith(f"{part}.")), None)


RELEASE = Verl("0.9.1", main="ascend_quant.integrations.verl.main_ppo")
COMMIT = Verl(
    "0.8.0.dev (commit bcb638649a50)",
    main="verl.trainer.main_ppo",
    absent={"algorithm.filter_groups": "dynamic sampling"},
    unread={
        **UNREAD,
        f"{ACTOR}.entropy_checkpointing": (f"{ACTOR}.fsdp_config.entropy_checkpointing",),
        f"{REFERENCE}.entropy_checkpointing": (f"{REFERENCE}.fsdp_config.entropy_checkpointing",),
    },
)


def verl_of(stack: str) -> Verl:
    """Return the version of verl that a stack pins."""
    return COMMIT if stack == "ascend-cann8.5" else RELEASE
