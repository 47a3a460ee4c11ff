"""An engine core that dies in the middle of a refit, and the engine that is started after it.

Not a test: test_separate_core.py starts it. crashing_core.py FOLDER OUT writes what it saw as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path


def die_half_way(worker, path: str):
    from models import checkpoint, perturbed

    from ascend_quant.integrations.vllm import refit_of

    model = worker.model_runner.model
    items = list(perturbed(checkpoint(Path(path)), seed=9).items())
    with refit_of(model).session():
        model.load_weights(items[: len(items) // 2])
        os.kill(os.getpid(), signal.SIGKILL)


def digests(worker):
    from ascend_quant.integrations.vllm import refit_of

    refit = refit_of(worker.model_runner.model)
    return refit.last_receipt.digest, refit.digest(), refit.why_not_servable()


def start(folder: str):
    from vllm import LLM

    return LLM(
        folder, dtype="bfloat16", enforce_eager=True, max_model_len=64, max_num_seqs=8, quantization="ascend_quant"
    )


def main(folder: str, out: str) -> None:
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_ALLOW_INSECURE_SERIALIZATION="1")
    from vllm import SamplingParams

    prompt, few = [{"prompt_token_ids": [3, 4, 5]}], SamplingParams(max_tokens=4, ignore_eos=True, temperature=0)
    llm = start(folder)
    found = {"at start": llm.collective_rpc(digests), "tokens": llm.generate(prompt, few)[0].outputs[0].token_ids}
    for name, call in (
        ("refit", lambda: llm.collective_rpc(die_half_way, args=(folder,))),
        ("after", lambda: llm.generate(prompt, few)),
    ):
        try:
            call()
            found[name] = "answered"
        except Exception as error:
            found[name] = type(error).__name__
    llm = start(folder)
    found["restarted"] = llm.collective_rpc(digests)
    found["tokens again"] = llm.generate(prompt, few)[0].outputs[0].token_ids
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
