"""The arguments of verl for a recipe: the leaves of its composed tree, as Hydra overrides.

They do not need this package's recipes on Hydra's search path. A plain `key=value` fails if verl has no such
key, which finds typos; `+key=value` is used where verl accepts any key, or if the user wrote it.

Settings that verl does not read, or that do harm, are refused.
"""

from collections.abc import Iterator, Mapping

from ascend_quant.recipes import leaves
from ascend_quant.recipes.keys import ACTOR, REFERENCE, plus
from launch.recipes.fields import Recipe
from launch.recipes.paths import Paths, settings
from launch.recipes.verl import text, verl_of

# verl 0.9.1 casts the whole module, including the frequencies of the rotary embedding. A small random Qwen2
# then differs from the same model without rounding by 0.04 nats per token at position 400, and by 0.8 at 3,500. With
# BF16 arithmetic only, which FSDP uses anyway, it differs by 0.001 at every position.
HARMFUL = {
    f"{part}.fsdp_config.model_dtype": (
        "remove it: with less than float32, verl also rounds the frequencies of the rotary embedding, and the "
        "trainer's policy diverges from the rollout's more with every token; products are in BF16 anyway"
    )
    for part in (ACTOR, REFERENCE)
}


def resolve(recipe: Recipe, paths: Paths) -> tuple[str, ...]:
    """Return a recipe's overrides for the version of verl that its stack pins."""
    verl, tree = verl_of(recipe.stack), dict(leaves(recipe.verl)) | settings(recipe, paths)
    written = {key(one): one[: len(one) - len(one.lstrip("+"))] for one in recipe.extra}
    made = [f"{_plus(name, written)}{name}={text(value)}" for name, value in tree.items() if not verl.lacks(name)]
    return (*made, *filter(verbatim, recipe.extra))


def verbatim(override: str) -> bool:
    """Return whether an override is passed on unchanged: one of Hydra's own, or the deletion of one of verl's keys."""
    return key(override).startswith("hydra.") or (override.startswith("~") and not plus(key(override)))


def key(override: str) -> str:
    """Return the key of an override, without Hydra's prefixes."""
    return override.partition("=")[0].lstrip("+~")


def _plus(name: str, written: Mapping[str, str]) -> str:
    """Return the prefix of a setting: the user's, for it or a mapping that contains it, or else that of `plus`."""
    return next((sign for one, sign in written.items() if sign and f"{name}.".startswith(f"{one}.")), plus(name))


def refused(recipe: Recipe) -> Iterator[str]:
    """Yield a line with the fix for each verl setting that has no effect, or does harm."""
    verl = verl_of(recipe.stack)
    for name, _ in leaves(recipe.verl):
        if name in HARMFUL:
            yield f"{name}: {HARMFUL[name]}"
        elif name in verl.unread:
            instead = " and ".join(verl.unread[name])
            yield f"{name}: verl {verl.name} does not read it: {f'it reads {instead}' if instead else 'remove it'}"
