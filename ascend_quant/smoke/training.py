"""Training as a part of the smoke test: a few steps with int8 rollouts, then one whose weights contain a NaN.

verl trains the demo's model with the recipe addition-int8, as a user would start it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from statistics import median
from typing import Any

from ascend_quant.demo import DemoError
from ascend_quant.demo.report import receipt, step_record
from ascend_quant.demo.task import TINY_ON_NPUS
from ascend_quant.demo.training import DEMO, METRICS, Choices, inputs, read_lines, verl
from ascend_quant.integrations.verl.cpu_settings import CPUS
from ascend_quant.integrations.verl.training.attention_settings import LIBRARY
from ascend_quant.processes.child import Ended
from ascend_quant.processes.memory import GIB, memory_here
from ascend_quant.recipes.keys import ROLLOUT
from ascend_quant.smoke import SPOILT
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result
from ascend_quant.smoke.setting import Setting

DATA_S = 300
TRAIN_S = {"cpu": 1200, "cuda": 660, "npu": 660}
MEMORY = 8 * GIB  # of the host, and of the device, as in the recipe
RAY = "ray_kwargs.ray_init"
DEVICES = {"cpu": "num_gpus", "cuda": "num_gpus", "npu": "resources.NPU"}  # Ray's names; on a CPU, it is only a name
OBJECT_STORE = 500_000_000  # bytes
TRAIN, NAN = "train", "train.nan"
DECIDES = "verl trains with int8 rollouts, and every weight that it sent is proved to have arrived"
REFUSES = "a NaN that the trainer sends ends the run, with its parameter's name"
PLANTED = "ascend_quant.smoke.planted"
NOT_FINITE = re.compile(rf"{re.escape(SPOILT)}: \d+ of .{{0,80}}NaN or Inf")
LARGEST_K3 = 1e-3  # maximum mismatch KL of a step


def train(setting: Setting, earlier: Mapping[str, Result]) -> list[Result]:
    """Train the steps if the machine can, then the step with a NaN.

    Args:
        earlier: results of other parts.
    """
    if lacking := lack(setting, memory_here()[1], earlier.get("versions")):
        why = f"{lacking}; afterwards, run smoke --only train"
        return [Result(name, what, NOT_APPLICABLE, reason=why) for name, what in ((TRAIN, DECIDES), (NAN, REFUSES))]
    try:
        ended = trained(setting)
    except DemoError as error:
        return [Result(TRAIN, DECIDES, FAILED, reason=str(error), broke=True), refused(setting, None, 0)]
    try:
        found = judged(setting, ended)
    except DemoError as error:
        found = Result(TRAIN, DECIDES, FAILED, ended.seconds, str(error), broke=True)
    return [found, refused(setting, ended, found.values.get("steps", 0))]


def lack(setting: Setting, available: int, versions: Result | None) -> str:
    """Return what is missing for a training; "" if nothing is.

    Args:
        available: bytes of the host's memory.
        versions: result of the probe of this name, which has looked at the device.
    """
    if setting.stack == "ascend-cann8.5":
        return "verl of this stack does not report what arrived: use stack ascend-cann9.1"
    if available < MEMORY:
        return f"training needs {MEMORY / GIB:.0f} GiB of memory, but {available / GIB:.1f} are available: free some"
    if setting.device == "cpu" or versions is None:
        return ""
    if versions.status == FAILED:
        return f"the device cannot be used: {versions.reason}"
    free, _ = versions.values["free and total bytes"]
    if free < MEMORY:
        return f"training needs {MEMORY / GIB:.0f} GiB of the device, but {free / GIB:.1f} are free: free some"
    return ""


def trained(setting: Setting) -> Ended:
    """Create data and model, and train.

    Raises:
        DemoError: the model cannot be created.
    """
    from ascend_quant.demo.warmup import write_inputs

    warm_up = replace(DEMO.warm_up, seconds=min(DATA_S, setting.left))
    setup = replace(DEMO, shape=TINY_ON_NPUS, warm_up=warm_up)
    write_inputs(Choices((), setting.steps + 1, 0, "qwen2", setup), setting.folder / "data")
    limit = min(TRAIN_S[setting.device], setting.left)
    recipe = ["+recipe=addition-int8", f"stack={setting.stack}"]
    return verl(recipe, settings_of(setting), setting.folder / TRAIN, limit, setting.stack)


def settings_of(setting: Setting) -> dict[str, Any]:
    """Return settings for one device, and for one more step, whose weights contain a NaN.

    Engines on devices sleep and capture graphs, as in the recipes for real models.
    """
    settings = {
        "trainer.nnodes": 1,
        "trainer.device": setting.device,
        "trainer.total_training_steps": setting.steps + 1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "actor_rollout_ref.model.external_lib": [PLANTED] if setting.device == "npu" else [LIBRARY, PLANTED],
        f"{RAY}.{DEVICES[setting.device]}": 1,
        f"{RAY}.num_cpus": CPUS,
        f"{RAY}.include_dashboard": False,
        f"{RAY}.object_store_memory": OBJECT_STORE,
    }
    if setting.device != "cpu":
        engine = {"enforce_eager": False, "free_cache_engine": True, "enable_sleep_mode": True}
        settings |= {f"{ROLLOUT}.{name}": value for name, value in engine.items()}
    return settings | inputs(setting.folder / "data")


def judged(setting: Setting, ended: Ended) -> Result:
    """Judge the metrics that verl logged.

    Raises:
        DemoError: a step lacks one of the demo's metrics.
    """
    lines = read_lines(ended.log.with_name(METRICS))[: setting.steps]
    steps, receipts = [step_record(line) for line in lines], [receipt(line) for line in lines]
    problems = []
    if bad := sorted({name for one in steps for name, value in one.items() if not isfinite(value)}):
        problems.append(f"not finite: {', '.join(bad)}")
    if unproved := [number for number, one in enumerate(receipts, start=1) if not one.get("verified")]:
        problems.append(f"no arrival was verified in step {', '.join(map(str, unproved))}")
    values: dict = {"steps": len(steps)}
    if steps:
        values["mismatch KL"] = largest = max(one["k3_kl"] for one in steps)
        values["weight sync, ms"] = 1000 * median(one["refit_seconds"] for one in steps)
        values |= {"metrics": steps, "receipts": receipts}
        if not largest < LARGEST_K3:
            problems.append(
                f"the mismatch KL is {largest:.3g}, but must be at most {LARGEST_K3}: sampler and trainer differ"
            )
    broke = not problems and len(steps) != setting.steps
    if len(steps) != setting.steps:
        problems.append(f"{len(steps)} of {setting.steps} steps were logged; {ended.why()}")
    return Result(TRAIN, DECIDES, FAILED if problems else OK, ended.seconds, "; ".join(problems), values, broke)


def refused(setting: Setting, ended: Ended | None, steps: int) -> Result:
    """Judge the effect of the last step's NaN, after so many steps; `ended` is None if verl did not start."""
    if ended is None or steps != setting.steps:
        return Result(NAN, REFUSES, FAILED, 0.0, "training did not get that far", broke=True)
    said = NOT_FINITE.search(ended.log.read_text(errors="replace"))
    values = {"ended with": ended.code, "said": said[0] if said else ""}
    if ended.code == 0:
        return Result(NAN, REFUSES, FAILED, 0.0, "the run went on with a NaN", values)
    why = "" if said else ended.why()
    return Result(NAN, REFUSES, OK if said else FAILED, 0.0, why, values, broke=not said)
