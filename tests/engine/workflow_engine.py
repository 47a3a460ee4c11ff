"""workflow_engine.py OUT FOLDER NEXT: an engine that only FLASHRL_CONFIG quantizes; its bytes, then a refit with NEXT.

Not a test: test_flashrl_workflow.py starts it, with the variable in its environment.
"""

import sys

import torch
from engines import logprobs, refit, resident
from vllm import LLM


def main(out: str, folder: str, following: str) -> None:
    llm = LLM(folder, dtype="bfloat16", enforce_eager=True, max_model_len=64, max_num_seqs=16)
    start = {"resident": resident(llm), "logprobs": logprobs(llm), "receipt": refit(llm).last_receipt}
    llm.collective_rpc("reload_weights", kwargs={"weights_path": following})
    after = {"resident": resident(llm), "logprobs": logprobs(llm), "receipt": refit(llm).last_receipt}
    torch.save({"start": start, "after": after}, out)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
