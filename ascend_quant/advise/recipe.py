"""A recipe's engine settings, with its `extends` followed. `./run.sh train` checks whether the recipe is valid."""

from pathlib import Path
from typing import Any

from ascend_quant.advise import AdviceError
from ascend_quant.advise.roofline import Workload
from ascend_quant.documents import BadDocument, read_yaml

TRAIN_BATCH_SIZE = 1024  # verl's


def read_recipe(file: Path) -> tuple[str, Workload]:
    """The model, and the load of one engine where every answer is as long as the recipe allows.

    Raises:
        AdviceError: the file, or one that it extends, is missing, is no YAML, or lacks a field that is needed here.
    """
    recipe = _read(file)
    try:
        rollout, verl = recipe["rollout"], recipe["verl"]
        sampling = verl.get("algorithm", {}).get("filter_groups", {})
        batches = sampling.get("max_inflight_gen_batches", 1) if sampling.get("enable") else 1
        sequences = verl["data"].get("train_batch_size", TRAIN_BATCH_SIZE) * batches * rollout["n"]
        devices = recipe["nodes"] * (rollout.get("apart") or recipe["devices_per_node"])
        workload = Workload(
            tp=rollout["tensor_parallel"],
            batch=-(-sequences // max(1, devices // rollout["tensor_parallel"])),
            inputs=rollout["max_prompt_length"],
            outputs=rollout["max_response_length"],
            memory=rollout["gpu_memory_utilization"],
        )
        return recipe["model"].get("hub") or recipe["model"]["folder"], workload
    except (AttributeError, KeyError, TypeError) as error:
        raise AdviceError(f"{file} is no whole recipe ({error!r}); `./run.sh recipe show {file}` says more") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        recipe = read_yaml(file)
    except BadDocument as error:
        raise AdviceError(str(error)) from error
    bases, whole = recipe.pop("extends", []), {}
    for base in [bases] if isinstance(bases, str) else bases:
        whole = _merged(whole, _read(file.parent / f"{base}.yaml"))
    return _merged(whole, recipe)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both; where both have a value, it is that of `above`."""
    nested = {key: _merged(below.get(key) or {}, value) for key, value in above.items() if isinstance(value, dict)}
    return below | above | nested
