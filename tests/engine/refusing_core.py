"""An engine core in a process of its own, as `vllm serve` runs it: a bad refit, refused requests, a healing refit.

Not a test: test_separate_core.py starts it. refusing_core.py FOLDER OUT writes what it saw as JSON.
"""

import json
import os
import sys
from pathlib import Path


def refit(worker, path: str, spoil: bool):
    from models import checkpoint

    state = checkpoint(Path(path))
    if spoil:
        state["model.layers.1.self_attn.o_proj.weight"][0, 0] = float("nan")
    worker.model_runner.model.load_weights(state.items())


def wake_up_changed(worker):
    refit = worker.model_runner.model.ascend_quant_refit
    refit.slept(1)
    next(resident for resident in refit.residents if resident.codes).data.view(-1)[0] ^= 1
    refit.woke(["weights"])
    return refit.unseen


def main(folder: str, out: str) -> None:
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_ALLOW_INSECURE_SERIALIZATION="1")
    from vllm import LLM, SamplingParams

    llm = LLM(
        folder, dtype="bfloat16", enforce_eager=True, max_model_len=64, max_num_seqs=8, quantization="ascend_quant"
    )

    def finish():
        (answer,) = llm.generate([{"prompt_token_ids": [3, 4, 5]}], SamplingParams(max_tokens=4, ignore_eos=True))
        return [answer.outputs[0].finish_reason, len(answer.outputs[0].token_ids)]

    found = {"at start": finish()}
    try:
        llm.collective_rpc(refit, args=(folder, True))
    except Exception as error:
        found["error"] = str(error)
    found["refused"] = [finish(), finish()]
    llm.collective_rpc(refit, args=(folder, False))
    found["healed"] = finish()
    found["unseen"] = llm.collective_rpc(wake_up_changed)
    found["seen"] = finish()
    llm.collective_rpc(refit, args=(folder, False))
    found["healed again"] = finish()
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
