"""Sleep and wake-up of an engine with captured graphs: bytes, formats, answers and memory are checked."""

from typing import Any

from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.schemes import get_scheme
from ascend_quant.smoke.engine import (
    BUCKET,
    MEMORY,
    SCHEME,
    asked,
    checkpoints,
    definition_digest,
    engine_of,
    generated,
    need_vllm,
    questions,
)
from ascend_quant.smoke.probes import On, Seen, probe

FRACTAL_NZ = "29"
CYCLES = 20
GROWTH = 64 << 20  # bytes of device memory between the third and the last cycle: vllm-ascend#9563 leaks in each


@probe(
    "engine.sleep",
    f"a sleep keeps bytes, formats and answers; so do {CYCLES} with a refit each, and memory does not grow",
    ("cuda", "npu"),
    True,
    240,
)
def sleep(on: On) -> Seen:
    """Let an engine sleep without a refit, then refit it to the two checkpoints in turn, each after a sleep."""
    need_vllm(on)
    options: dict[str, Any] = {"enable_sleep_mode": True}
    if on.device.type == "npu":
        options["additional_config"] = {"weight_nz_mode": 0}  # vllm-ascend's own casts do not survive sleep
    with checkpoints(On(on.device)) as both:
        prompts = questions(both[0])
        with engine_of(both[0], SCHEME, graphs=True, memory=MEMORY, **options) as llm:

            def state() -> dict[str, Any]:
                formats = asked(llm, "smoke_formats")[0] if on.device.type == "npu" else {}
                digest = asked(llm, "smoke_receipt")[0]["read_back"]
                return {"digest": digest, "formats": formats, "answers": generated(llm, prompts)}

            def free() -> int:
                return asked(llm, "smoke_free")[0]

            before = state()
            llm.sleep(level=1)
            llm.wake_up()
            seen, turns = Seen({"before": before, "after": state()}), []
            for number in range(CYCLES):
                llm.sleep(level=1)
                turn = {"free asleep": free()}
                llm.wake_up()
                asked(llm, "smoke_refit", str(both[number % 2]), BUCKET)
                turns.append(turn | state() | {"free awake": free()})
            parameters = asked(llm, "smoke_parameters")[0]
        expected = [definition_digest(parameters, Checkpoint(one).tensor, get_scheme(SCHEME)) for one in both]
    judge(seen, turns, expected, nz=on.device.type == "npu")
    return seen


def judge(seen: Seen, turns: list[dict[str, Any]], expected: list[str], nz: bool) -> None:
    """Judge the sleep without a refit, and the cycles, of which every second one has the same weights.

    Args:
        nz: whether some weights must be in FRACTAL_NZ.
    """
    before, after = seen.values["before"], seen.values["after"]
    seen.holds(after == before, f"before a sleep {before}, after it {after}")
    seen.holds(not nz or after["formats"].get(FRACTAL_NZ, 0) > 0, f"no weight is in FRACTAL_NZ: {after['formats']}")
    for number, turn in enumerate(turns):
        wanted = expected[number % 2]
        seen.holds(turn["digest"] == wanted, f"cycle {number + 1}: digest {turn['digest']}, the definition's {wanted}")
        seen.holds(
            turn["answers"] == turns[number % 2]["answers"], f"cycle {number + 1}: the answers differ from those before"
        )
    seen.holds(
        turns[0]["answers"] != turns[1]["answers"], "both checkpoints give the same answers, so nothing was tested"
    )
    for when in ("free asleep", "free awake"):
        free = [turn[when] for turn in turns]
        grown = free[2] - free[-1]
        seen.values |= {f"{when}, grown by": grown, f"{when}, bytes": free}
        seen.holds(grown <= GROWTH, f"{when}: {grown} bytes fewer in the last cycle than in the third")
