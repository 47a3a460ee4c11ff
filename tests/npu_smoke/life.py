"""python -m npu_smoke.life FOLDER: an engine through a sleep, a NaN and a level-2 sleep; a line of JSON."""

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAN = "model.layers.0.mlp.up_proj.weight"
BUCKET = 1 << 20


def main() -> None:
    folder = Path(sys.argv[1])
    _write_nan(folder)
    with _engine(folder / "start") as (llm, generated):
        found = {"sleep": _sleep(llm, generated), "bad tensor": _bad_tensor(llm, generated, folder)}
        found["level 2"] = _level_2(llm)
    print(json.dumps(found))


@contextmanager
def _engine(folder: Path):
    from vllm import LLM

    from ascend_quant.integrations.vllm import register
    from ascend_quant.selfcheck import engine

    register()
    llm = LLM(
        str(folder),
        dtype="bfloat16",
        quantization="ascend_quant",
        hf_overrides={"quantization_config": {"quant_method": "ascend_quant", "scheme": "int8"}},
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_sleep_mode=True,
        additional_config={"weight_nz_mode": 0},  # vllm-ascend's own casts, from 0.27 on; before, by a variable
        max_model_len=128,
        gpu_memory_utilization=0.3,
        worker_extension_cls="npu_smoke.worker.Extension",
        seed=0,
    )
    try:
        yield llm, lambda: engine.generated(llm, engine.questions(folder))
    finally:
        llm.llm_engine.engine_core.shutdown()


def _asked(llm: Any, method: str, *args: Any) -> Any:
    (answer,) = llm.collective_rpc(method, args=args)
    return answer


def _sleep(llm: Any, generated: Callable[[], list]) -> dict[str, Any]:
    before, tokens = _state(llm), generated()
    llm.sleep(level=1)
    llm.wake_up()
    after = _state(llm)
    return {"before": before, "after": after, "formats": after["formats"], "same tokens": generated() == tokens}


def _state(llm: Any) -> dict[str, Any]:
    return {"digest": _asked(llm, "selfcheck_receipt")["read_back"], "formats": _asked(llm, "smoke_formats")}


def _bad_tensor(llm: Any, generated: Callable[[], list], folder: Path) -> dict[str, Any]:
    return {
        "tensor": NAN,
        "refused": _said(lambda: _asked(llm, "selfcheck_refit", str(folder / "nan"), BUCKET)),
        "served meanwhile": _serves(generated),
        "healed": _said(lambda: _asked(llm, "selfcheck_refit", str(folder / "then"), BUCKET)),
        "served then": _serves(generated),
    }


def _serves(generated: Callable[[], list]) -> bool:
    """Whether every prompt gets tokens; an engine that refuses ends requests without any, or raises."""
    answers: list = []
    return not _said(lambda: answers.extend(generated())) and all(answers)


def _level_2(llm: Any) -> dict[str, Any]:
    """Whether it is refused; if not, whether the bytes are there afterwards."""
    before = _state(llm)
    refused = _said(lambda: llm.sleep(level=2))
    if refused:
        return {"refused": refused}
    woken = _said(llm.wake_up)
    return {"refused": "", "woken": woken, "before": before, "after": _said(lambda: _state(llm)) or _state(llm)}


def _said(call: Callable[[], object]) -> str:
    """What it raises; "" if nothing."""
    try:
        call()
    except Exception as why:  # an engine's own words, of whatever kind
        return " ".join(f"{type(why).__name__}: {why}".split())[:600]
    return ""


def _write_nan(folder: Path) -> None:
    """FOLDER/nan: the later checkpoint with a NaN."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder / "then", folder / "nan")
    (file,) = (folder / "nan").glob("*.safetensors")
    state = load_file(file)
    state[NAN][3, 5] = float("nan")
    save_file(state, file, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
