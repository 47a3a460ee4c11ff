"""Run an engine on two ranks and dump what each holds, its keys balanced or not: balanced_ranks.py OUT FOLDER on|off.

Not a test: test_key_balance_engine.py starts it. Naming `Extension` to an engine has its workers import this module
before they build the model, and import is what makes the CPU's BF16 cache one that wants a balance.
"""

import os
import sys

import torch

from ascend_quant.integrations.vllm.kv_cache import key_balance
from ascend_quant.kv_cache.smooth_attention import KeyBalance

SWITCH = "TEST_BALANCED_RANKS"  # inherited by the workers

key_balance.ROUNDS_CHANNELS_ALIKE = ("auto",) if os.environ.get(SWITCH) == "on" else ()


class Extension:
    """Methods that vLLM adds to its worker class."""

    def dumped(self):
        from engines import as_bytes

        model = self.model_runner.model
        refit = model.ascend_quant_refit
        held = {name: as_bytes(parameter.detach().clone()) for name, parameter in model.named_parameters()}
        factors = next((one.factors for one in refit.checks if isinstance(one, KeyBalance)), {})
        return held, factors, refit.last_receipt.digest == refit.digest()


def main(out: str, folder: str, switch: str) -> None:
    os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", SWITCH: switch})
    from engines import engine, logprobs

    more = {"distributed_executor_backend": "mp", "worker_extension_cls": "balanced_ranks.Extension"}
    with engine(folder, tensor_parallel_size=2, **more) as llm:
        torch.save((llm.collective_rpc("dumped"), logprobs(llm)), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
