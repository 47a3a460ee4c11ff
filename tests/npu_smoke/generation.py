"""How fast engines generate: BF16, this project's int8, and vllm-ascend's own W8A8, with layers of a 7B model."""

from npu_smoke import tools
from npu_smoke.checks import IN_SHORT, NotPossible, Setting, Wrong, check

PACKAGES = ("vllm", "vllm_ascend", "acl", "transformers")
SCHEMES = ("bf16", "int8", "w8a8")  # the last is vllm-ascend's own
LAYERS, SMALL_LAYERS = 8, 2
SECONDS = 150.0  # of one engine


@check("generation.speed", needed=False, limit_s=3 * SECONDS + 60)
def speed(on: Setting, numbers: dict) -> None:
    """How many tokens a second with int8, beside BF16 and vllm-ascend's own W8A8?"""
    tools.need_packages(*PACKAGES)
    lacking = {}
    for scheme in SCHEMES:
        try:
            numbers[scheme] = _generated(on, scheme)
        except (Wrong, NotPossible) as why:  # the others' figures are worth having all the same
            lacking[scheme] = str(why)
    numbers["not measured"] = lacking
    if "bf16" in numbers and "int8" in numbers:
        times = {
            batch: numbers["int8"]["tokens/s"][batch] / rate for batch, rate in numbers["bf16"]["tokens/s"].items()
        }
        numbers["int8 / bf16"] = times
        numbers[IN_SHORT] = ", ".join(f"batch {batch}: {ratio:.2f} x BF16" for batch, ratio in times.items())
    if lacking:
        raise Wrong("; ".join(f"{scheme}: {why}" for scheme, why in lacking.items()))


def _generated(on: Setting, scheme: str) -> dict:
    with tools.folder() as folder:
        layers = SMALL_LAYERS if on.small else LAYERS
        command = tools.module("npu_smoke.generating", scheme, str(folder), "--layers", str(layers))
        return tools.answer(command, SECONDS, folder, {"VLLM_ASCEND_ENABLE_NZ": "1" if scheme == "w8a8" else "0"})
