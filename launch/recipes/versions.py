"""What differs between the verl versions of the stacks, all of it here. Everything else a recipe says holds for both.

| stack          | verl                                        | its vLLM |
|----------------|---------------------------------------------|----------|
| ascend-cann8.5 | 0.8.0.dev, commit bcb638649a50 (April 2026) | 0.10.1   |
| all others     | 0.9.1                                       | 0.23     |

Both read the same configuration tree, and both leave the same two things to the caller, which `correction.py` says to
both: that log-probabilities of the rollout are kept, and, in bypass mode, the actor's loss.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verl:
    """One version, as far as a recipe is concerned.

    Attributes:
        name: for people.
        main: the module that starts a run. Ours logs every refit and proves what was sent; it needs verl's trainer v1.
        names_quantization: whether the engine's command line takes our quantization by its name. vLLM 0.10.1's knows
            its own names alone, and finds ours in `hf_overrides`, where a checkpoint's config would have it.
        absent: parts of the newer version's tree that this one lacks, and what they are for.
    """

    name: str
    main: str
    names_quantization: bool
    absent: dict[str, str] = field(default_factory=dict)

    def lacks(self, key: str) -> str | None:
        """The part that holds a setting, if this version has no such part."""
        return next((part for part in self.absent if key == part or key.startswith(f"{part}.")), None)


RELEASE = Verl("0.9.1", main="ascend_quant.integrations.verl.main_ppo", names_quantization=True)
COMMIT = Verl(
    "0.8.0.dev (commit bcb638649a50)",
    main="verl.trainer.main_ppo",
    names_quantization=False,
    absent={"algorithm.filter_groups": "dynamic sampling"},
)


def verl_of(stack: str) -> Verl:
    """The version that a stack pins."""
    return COMMIT if stack == "ascend-cann8.5" else RELEASE
