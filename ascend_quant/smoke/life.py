"""An engine through sleeps, and through a NaN that a trainer sends: bytes, formats and answers before and after."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
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

NAN = "model.layers.0.mlp.up_proj.weight"
FRACTAL_NZ = "29"
CYCLES = 20
GROWTH = 64 << 20  # bytes of a device, from the third cycle to the last: vllm-ascend#9563 is of some with each


@probe(
    "engine.sleep",
    "a sleep keeps bytes, formats and answers; a NaN is refused by its name until a refit heals",
    ("npu",),
    True,
    150,
)
def sleep(on: On) -> Seen:
    """Let an engine sleep and take a NaN, with FRACTAL_NZ on; sleep level 2 is refused."""
    need_vllm(on)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # what a worker raises comes here as it is
    with checkpoints(On(on.device)) as (start, then):
        nan = _with_nan(then)
        prompts = questions(start)
        with engine_of(start, SCHEME, memory=MEMORY, **_sleeps(on)) as llm:

            def answers() -> list[list[int]]:
                return generated(llm, prompts)

            before, tokens = _state(llm), answers()
            llm.sleep(level=1)
            llm.wake_up()
            seen = Seen({"before": before, "after": _state(llm), "same answers": answers() == tokens})
            seen.values["a NaN"] = _said(lambda: asked(llm, "smoke_refit", str(nan), BUCKET))
            seen.values["served meanwhile"] = _serves(answers)
            seen.values["a good refit"] = _said(lambda: asked(llm, "smoke_refit", str(then), BUCKET))
            seen.values["served then"] = _serves(answers)
            seen.values["sleep level 2"] = _said(lambda: llm.sleep(level=2))
    judge(seen)
    return seen


@probe(
    "engine.cycles",
    f"{CYCLES} times asleep, awake and refitted, under graphs that were captured before: bytes, answers, memory",
    ("cuda", "npu"),
    True,
    240,
)
def cycles(on: On) -> Seen:
    """Refitted to either checkpoint in turn."""
    need_vllm(on)
    with checkpoints(On(on.device)) as both:
        prompts = questions(both[0])
        with engine_of(both[0], SCHEME, graphs=True, memory=MEMORY, **_sleeps(on)) as llm:
            turns = []
            for number in range(CYCLES):
                llm.sleep(level=1)
                turn = {"free asleep": asked(llm, "smoke_free")[0]}
                llm.wake_up()
                asked(llm, "smoke_refit", str(both[number % 2]), BUCKET)
                turn |= {"digest": asked(llm, "smoke_receipt")[0]["read_back"], "answers": generated(llm, prompts)}
                turns.append(turn | {"free awake": asked(llm, "smoke_free")[0]})
            parameters = asked(llm, "smoke_parameters")[0]
        expected = [definition_digest(parameters, Checkpoint(one).tensor, get_scheme(SCHEME)) for one in both]
    return judge_cycles(turns, expected)


def judge_cycles(turns: list[dict[str, Any]], expected: list[str]) -> Seen:
    """Judge the turns, of which every second one has the same weights."""
    seen = Seen({"cycles": len(turns)})
    for number, turn in enumerate(turns):
        wanted = expected[number % 2]
        seen.holds(turn["digest"] == wanted, f"cycle {number + 1}: digest {turn['digest']}, the definition's {wanted}")
        seen.holds(turn["answers"] == turns[number % 2]["answers"], f"cycle {number + 1}: other answers than before")
    seen.holds(turns[0]["answers"] != turns[1]["answers"], "both checkpoints answer alike: nothing was tried")
    for when in ("free asleep", "free awake"):
        free = [turn[when] for turn in turns]
        grown = free[2] - free[-1]
        seen.values |= {f"{when}, grown by": grown, f"{when}, bytes": free}
        seen.holds(grown <= GROWTH, f"{when}: {grown} bytes fewer in the last cycle than in the third")
    return seen


def _sleeps(on: On) -> dict[str, Any]:
    """Options of an engine that sleeps; vllm-ascend's own casts do not survive it."""
    return {"enable_sleep_mode": True} | (
        {"additional_config": {"weight_nz_mode": 0}} if on.device.type == "npu" else {}
    )


def judge(seen: Seen) -> None:
    """The problems of what was observed."""
    found = seen.values
    seen.holds(found["after"] == found["before"], f"before a sleep {found['before']}, after it {found['after']}")
    formats = found["after"]["formats"]
    seen.holds(formats.get(FRACTAL_NZ, 0) > 0, f"no weight is in FRACTAL_NZ ({FRACTAL_NZ}): {formats}")
    seen.holds(found["same answers"], "other answers after the wake-up")
    seen.holds(NAN in found["a NaN"], f"{NAN} has a NaN; the refusal: {found['a NaN'] or 'none'}")
    seen.holds(not found["served meanwhile"], "it generated with weights that were refused")
    seen.holds(found["served then"], f"it does not generate after a good refit: {found['a good refit']}")
    seen.holds(bool(found["sleep level 2"]), "sleep level 2 is not refused")


def _state(llm: Any) -> dict[str, Any]:
    return {"digest": asked(llm, "smoke_receipt")[0]["read_back"], "formats": asked(llm, "smoke_formats")[0]}


def _serves(answers: Callable[[], list]) -> bool:
    """True if every prompt gets tokens; an engine that refuses ends requests without any, or raises."""
    found: list = []
    return not _said(lambda: found.extend(answers())) and all(found)


def _said(call: Callable[[], object]) -> str:
    """The text of the error that it raises; "" if it raises none."""
    try:
        call()
    except Exception as why:  # an engine's own words, of whatever kind
        return " ".join(f"{type(why).__name__}: {why}".split())[:600]
    return ""


def _with_nan(folder: Path) -> Path:
    """Copy a checkpoint beside it, with a NaN."""
    from safetensors.torch import load_file, save_file

    copy = folder.with_name("nan")
    shutil.copytree(folder, copy)
    (file,) = copy.glob("*.safetensors")
    state = load_file(file)
    state[NAN][3, 5] = float("nan")
    save_file(state, file, metadata={"format": "pt"})
    return copy
