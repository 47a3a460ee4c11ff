"""Diagnosis of unexpected tensor names: the prefix of a wrapper (FSDP, DDP, torch.compile), or PEFT's infixes.

Wrappers of a model add a prefix to its names (`module.` for DDP, `_orig_mod.` for torch.compile) or an infix
(`_fsdp_wrapped_module.`); names of an inner model lack the outer model's prefix.
"""

from collections.abc import Collection

PEFT = ("base_model", "base_layer")
ADAPTER = "lora_"


def misnamed(name: str, known: Collection[str]) -> str | None:
    """Return how the sender should change an unexpected tensor name; None if unknown.

    Args:
        known: names that the engine accepts.
    """
    parts = name.split(".")
    prefix = next((".".join(parts[:i]) + "." for i in range(1, len(parts)) if ".".join(parts[i:]) in known), None)
    if peft := [part for part in parts if part in PEFT or part.startswith(ADAPTER)]:
        what = prefix or f"{peft[0]}."
        return (
            f"{what} in its name comes from PEFT: merge the adapter (merge_and_unload) and send the tensors of the "
            "merged model"
        )
    if prefix is not None:
        return f"the engine's name for it has no prefix {prefix!r}: send it as name.removeprefix({prefix!r})"
    for i in range(1, len(parts) - 1):
        if ".".join([*parts[:i], *parts[i + 1 :]]) in known:
            inner = f"{parts[i]}."
            return f"the engine's name for it does not contain {inner!r}: send it as name.replace({inner!r}, '')"
    longer = [other for other in known if len(parts) > 1 and other.endswith(f".{name}")]
    if longer:
        prefix = min(longer, key=len).removesuffix(name)
        return f"the engine's name for it begins with {prefix!r}: send it as {prefix!r} + name"
    return None
