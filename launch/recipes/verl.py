"""The versions of verl that the stacks pin, and the syntax of values on verl's command line.

| stack          | verl                                        | its vLLM |
|----------------|---------------------------------------------|----------|
| ascend-cann8.5 | 0.8.0.dev, commit bcb638649a50 (April 2026) | 0.10.1   |
| all others     | 0.9.1                                       | 0.23     |

Both versions have the same configuration tree, except for `Verl.absent`. Both have settings that they do not read, so
that setting one has no effect and raises no error. This module lists those that training scripts set, with the settings
that are read instead, if any; tests/engine/verl_reads.py found them.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from ascend_quant.recipes.keys import ACTOR, MODEL, REFERENCE, ROLLOUT
from launch import LaunchError

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
WORDS = ("null", "true", "false", "nan", "inf")  # Hydra's keywords, which are case-insensitive

UNREAD = {  # settings that neither version reads, and those that are read instead
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
    """Format a value in Hydra's syntax: a list, a mapping, a string, a number, true, false or null.

    Raises:
        LaunchError: the value is of another kind, such as a date in YAML.
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
    """Quote in single quotes; only backslashes before a quote are doubled, as Hydra requires, unlike JSON."""
    inner = re.sub(r"(\\*)'", r"\1\1\\'", value)
    slashes = len(inner) - len(inner.rstrip("\\"))
    return f"'{inner}{slashes * chr(92)}'"


@dataclass(frozen=True)
class Verl:
    """Description of one version of verl.

    Attributes:
        name: name of the version in messages.
        main: module that starts a run. Ours logs every refit and verifies the sent weights; it needs verl's trainer v1.
        absent: part of the newer version's tree, dynamic sampling, if this version lacks it.
        unread: settings that this version does not read, and those that are read instead.
    """

    name: str
    main: str
    absent: str | None = None
    unread: dict[str, tuple[str, ...]] = field(default_factory=lambda: UNREAD)

    def lacks(self, key: str) -> bool:
        """Return whether this version lacks a setting."""
        return self.absent is not None and f"{key}.".startswith(f"{self.absent}.")


RELEASE = Verl("0.9.1", main="ascend_quant.integrations.verl.main_ppo")
COMMIT = Verl(
    "0.8.0.dev (commit bcb638649a50)",
    main="verl.trainer.main_ppo",
    absent="algorithm.filter_groups",
    unread={
        **UNREAD,
        f"{ACTOR}.entropy_checkpointing": (f"{ACTOR}.fsdp_config.entropy_checkpointing",),
        f"{REFERENCE}.entropy_checkpointing": (f"{REFERENCE}.fsdp_config.entropy_checkpointing",),
    },
)


def verl_of(stack: str) -> Verl:
    """Return the version of verl that a stack pins."""
    return COMMIT if stack == "ascend-cann8.5" else RELEASE
