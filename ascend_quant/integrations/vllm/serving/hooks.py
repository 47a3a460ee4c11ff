"""Monkeypatches of vLLM for requests, calls and HTTP errors: what is replaced at run time, why, how to disable it.

Part of the list in vllm/hooks.py.
"""

from ascend_quant.integrations.vllm.serving import calls, http_errors, requests
from ascend_quant.integrations.wrapping import ByHand, Hook

ENGINE, CORE = "vllm.v1.engine.llm_engine:LLMEngine", "vllm.v1.engine.core:EngineCore"
ANOTHER = "another `quantization`"
REFUSING = "an error in a forward pass ends the engine: requests must not get that far while it may not serve"

AT_START = (
    Hook(
        (f"{CORE}.collective_rpc",),
        calls.answered,
        why="weights come this way: whichever worker fails, every worker's end and state must be known",
        versions="0.10 to 0.32",
        off=ANOTHER,
    ),
    Hook(
        (f"{CORE}.sleep", f"{CORE}.wake_up"),
        requests.asking,
        why="weights go and come: afterwards the core must know whether its workers may serve",
        versions="those that have them",
        off=ANOTHER,
        optional=True,
    ),
    Hook(
        (f"{CORE}.step", f"{CORE}.step_with_batch_queue"),
        requests.ending,
        why=f"{REFUSING}; those in flight end with the reason",
        versions="0.10 to 0.32",
        off=ANOTHER,
    ),
    Hook(
        (f"{CORE}.add_request",),
        requests.forgetting,
        why="no prefix that old weights have computed, and no image that they saw, may serve a new request",
        versions="0.10 to 0.32",
        off=ANOTHER,
    ),
    Hook(
        (f"{ENGINE}.add_request",),
        requests.refusing,
        why=f"{REFUSING}; a caller in the core's own process gets an exception",
        versions="0.10 to 0.32",
        off=ANOTHER,
    ),
)

WITH_HTTP_SERVER = (  # whose modules no other process has loaded
    Hook(
        (
            "vllm.entrypoints.generate.base.serving:GenerateBaseServing.__init__",
            "vllm.entrypoints.openai.engine.serving:OpenAIServing.__init__",  # 0.23 and 0.24
        ),
        http_errors.telling,
        why='it says "Internal server error" of every request that ends in error, or ends its stream without a word',
        versions="0.23 to 0.32",
        off=ANOTHER,
        optional=True,
        loaded=True,
    ),
    Hook(
        (
            "vllm.entrypoints.launchers.app:build_app",
            "vllm.entrypoints.openai.api_server:build_app",  # 0.23 and 0.24
        ),
        http_errors.answering,
        why="weights that are not taken are a status 500, which clients send again; and its health knows life or death",
        versions="0.23 to 0.32",
        off=ANOTHER,
        optional=True,
        loaded=True,
        everywhere=True,
    ),
)

BY_HAND = (
    ByHand(
        "the same, during a call of update_weights",
        "ascend_quant.integrations.vllm.serving.calls:_read_to_its_end",
        why="an error in it ends vLLM's reading of the update, whose sender then waits for ever in a broadcast",
        versions="those that have the method",
        off=ANOTHER,
    ),
)
