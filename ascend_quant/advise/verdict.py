"""The verdict on INT8, and none for a device that nobody has measured."""

from ascend_quant.advise import AdviceError
from ascend_quant.advise.model import Model, Workload
from ascend_quant.advise.roofline import DEVICES, GIB, Estimate, Row, estimate

UNCERTAINTY = 0.13  # the worst of the measured speedups is 12 % off
ROWS = {"bf16": Row("bf16"), "int8": Row("int8"), "int8, int8 cache": Row("int8", "int8")}
NPUS = ("A2", "A3")
PUBLISHED = """
Published by others, Qwen2.5-7B with FlashRL on Atlas A2, seconds of a training step with BF16 and with INT8 rollouts:
GSM8K 48.9 and 52.5 (+6.9 %), DAPO-math-17k 151.0 and 116.2 (-23.0 %)."""


def advise(model: Model, device: str, workload: Workload) -> tuple[str, dict[str, Estimate]]:
    """The verdict on INT8 for this engine, and what it follows from by row.

    Raises:
        AdviceError: the model cannot be split among the devices, or does not fit with INT8 weights either.
    """
    # vllm-ascend's int8 cache has other scales
    rows = {name: row for name, row in ROWS.items() if device not in NPUS or row.cache == "bf16"}
    found = {name: estimate(model, DEVICES[device], row, workload) for name, row in rows.items()}
    if not (int8 := found["int8"]).fit:
        sizes = f"{int8.weights / GIB:.1f} GiB of weights and {int8.sequence / GIB:.2f} GiB of cache for one sequence"
        given = workload.memory * DEVICES[device].memory / GIB
        raise AdviceError(f"INT8 does not fit either: {sizes} in {given:.1f} GiB; raise --tp or --memory")
    if int8.tokens_per_second is None:
        return f"Speed was not measured on {device}.{PUBLISHED if device in NPUS else ''}", found
    return _verdict(found, workload), found


def gains(found: dict[str, Estimate]) -> dict[str, float]:
    """Tokens/s of each row over those of BF16; none where BF16 does not fit or nothing was measured."""
    base = found["bf16"].tokens_per_second
    return {name: each.tokens_per_second / base for name, each in found.items()} if base else {}


def _verdict(found: dict[str, Estimate], workload: Workload) -> str:
    if not (gained := gains(found)):
        return "INT8 fits, BF16 does not."
    gain, base, int8 = gained["int8"], found["bf16"], found["int8"]
    word = "may pay or not, measure it"
    if not 1 / (1 + UNCERTAINTY) < gain <= 1 + UNCERTAINTY:
        word = "pays" if gain > 1 else "does not pay"
    links = ", without the links between devices" if workload.tp > 1 else ""
    share = base.decode["products"] / sum(base.decode.values())
    more = f"\n{int8.fit} sequences fit, not {base.fit}." if base.fit < workload.batch else ""
    return (
        f"INT8 {word}: {gain:.2f} times the tokens/s of BF16, with an int8 KV cache {gained['int8, int8 cache']:.2f}\n"
        f"(estimated within {UNCERTAINTY:.0%}{links}). What becomes INT8 takes {share:.0%} of a BF16 decode step.{more}"
    )
