"""A real vLLM engine with vllm-ascend on this device: refits, graphs, sleep, a tensor that is refused.

The model is made here, with two layers: what is asked is not how good it is.
"""

from functools import cache
from typing import Any

from npu_smoke import tools
from npu_smoke.checks import Setting, Wrong, check, require

PACKAGES = ("vllm", "vllm_ascend", "acl", "transformers", "safetensors", "typer")  # acl: CANN's own, by its set_env.sh
MODELS_S, CHECK_S, SLEEP_S = 120.0, 420.0, 300.0
MEMORY = "0.3"  # of a device
VARIABLES = {"VLLM_ASCEND_ENABLE_NZ": "0"}  # as verl sets it


@check("engine.tokens", needed=False, claim="bytes", limit_s=CHECK_S + MODELS_S)
def tokens(on: Setting, numbers: dict) -> None:
    """Does a refitted engine hold the oracle's bytes, and generate the tokens of a fresh one?"""
    _check_engine(numbers)


@check("engine.graphs", needed=False, claim="in place", limit_s=CHECK_S + MODELS_S)
def graphs(on: Setting, numbers: dict) -> None:
    """The same, with vLLM's own graphs, captured before the refit?"""
    _check_engine(numbers, "--graphs")


@check("engine.two_ranks", needed=False, claim="same bytes", limit_s=CHECK_S + MODELS_S)
def two_ranks(on: Setting, numbers: dict) -> None:
    """The first again, of an engine on two NPUs: does each rank hold what a fresh engine's holds?"""
    _check_engine(numbers, "--tensor-parallel-size", "2", devices=2)


@check("engine.experts_apart", needed=False, claim="same bytes", limit_s=CHECK_S + MODELS_S)
def experts_apart(on: Setting, numbers: dict) -> None:
    """The same on four, with experts that are dealt out whole?"""
    _check_engine(numbers, "--tensor-parallel-size", "4", "--expert-parallel", devices=4, moe=True)


@check("engine.sleep", needed=False, claim="sleep", limit_s=SLEEP_S + MODELS_S)
def sleep(on: Setting, numbers: dict) -> None:
    """Are bytes, formats and tokens after sleep level 1 and a wake-up those of before, with FRACTAL_NZ on?"""
    found = _lived()["sleep"]
    numbers |= found
    require(found["after"] == found["before"], f"digest and formats were {found['before']}, are {found['after']}")
    require(found["formats"].get("29", 0) > 0, f"no weight is in FRACTAL_NZ (29): {found['formats']}")
    require(found["same tokens"], "other tokens after the wake-up")


@check("engine.bad_tensor", needed=False, claim="bad tensors", limit_s=SLEEP_S + MODELS_S)
def bad_tensor(on: Setting, numbers: dict) -> None:
    """Is a NaN refused by the tensor's name, does the engine stop serving, and does the next refit heal it?"""
    found = _lived()["bad tensor"]
    numbers |= found
    require(found["tensor"] in found["refused"], f"{found['tensor']} has a NaN; the refusal: {found['refused']}")
    require(not found["served meanwhile"], "it generated with weights that were refused")
    require(found["served then"], "it does not generate after a good refit")


@check("engine.sleep_level_2", needed=False, claim="level 1", limit_s=SLEEP_S + MODELS_S)
def sleep_level_2(on: Setting, numbers: dict) -> None:
    """Is sleep level 2 refused with a reason? If it is not: what is lost by it?"""
    found = _lived()["level 2"]
    numbers |= found
    require(bool(found["refused"]), f"it sleeps: {found}")


def _check_engine(numbers: dict[str, Any], *options: str, devices: int = 1, moe: bool = False) -> None:
    """What `ascend-quant check-engine` finds."""
    tools.need_packages(*PACKAGES)
    tools.need_devices(devices)
    with tools.folder() as folder:
        _make_models(folder, moe)
        command = ["-c", "from ascend_quant.cli import app; app()", "check-engine", str(folder / "start")]
        command += [str(folder / "then"), "--gpu-memory-utilization", MEMORY, *options]
        code, said = tools.run(tools.python(*command), CHECK_S, folder, VARIABLES)
    lines = [line for line in said.splitlines() if line.startswith(("refit:", "generate:", "error:"))]
    numbers["check-engine"] = lines
    require(code == 0, "; ".join(lines) or f"check-engine ended with {code}: {' '.join(said.split())[-800:]}")


@cache
def _lived() -> dict[str, Any]:
    """What one engine went through; its parts are several checks' answers."""
    tools.need_packages(*PACKAGES)
    with tools.folder() as folder:
        _make_models(folder)
        command = tools.module("npu_smoke.life", str(folder))
        return tools.answer(command, SLEEP_S, folder, VARIABLES | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})


def _make_models(folder, moe: bool = False) -> None:
    kind = ["moe"] if moe else []
    code, said = tools.run(tools.module("launch.smoke.models", str(folder), *kind), MODELS_S, folder)
    if code:
        raise Wrong(f"launch.smoke.models ended with {code}: {' '.join(said.split())[-800:]}")
