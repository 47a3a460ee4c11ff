"""Monkeypatches of vLLM for requests, calls and HTTP errors: functions that are replaced at run time, and why.

They are part of the list in vllm/hooks.py.
"""

from ascend_quant.integrations.vllm.serving import calls, http_errors, requests
from ascend_quant.integrations.wrapping import Hook, ManualPatch

ENGINE, CORE = "vllm.v1.engine.llm_engine:LLMEngine", "vllm.v1.engine.core:EngineCore"
ANOTHER = "another `quantization`"
REFUSING = "an error in a forward pass ends the engine, so requests must be stopped before that while it may not serve"

AT_START = (
    Hook(
        (f"{CORE}.collective_rpc",),
        calls.answered,
        why="weights are updated through this call: whichever worker fails, the outcome and state of every worker must "
        "be known",
        versions="0.10 to 0.32",
        off=ANOTHER,
    ),
    Hook(
        (f"{CORE}.sleep", f"{CORE}.wake_up"),
        requests.asking,
        why="weights are discarded and restored: afterwards the core must know whether its workers may serve",
        versions="those that have them",
        off=ANOTHER,
        optional=True,
    ),
    Hook(
        (f"{CORE}.step", f"{CORE}.step_with_batch_queue"),
        requests.ending,
        why=f"{REFUSING}; running requests end with the reason",
        versions="0.10 to 0.32",
        off=ANOTHER,
    ),
    Hook(
        (f"{CORE}.add_request",),
        requests.forgetting,
        why="no cached prefix or image embedding of the old weights may be used for a new request",
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

WITH_HTTP_SERVER = (  # whose modules are loaded only in the API server's process
    Hook(
        (
            "vllm.entrypoints.generate.base.serving:GenerateBaseServing.__init__",
            "vllm.entrypoints.openai.engine.serving:OpenAIServing.__init__",  # 0.23 and 0.24
        ),
        http_errors.telling,
        why='it answers "Internal server error" for every request that ends in an error, or ends its stream without a '
        "message",
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
        why="rejected weights would be a status 500, which clients retry; and the health endpoint knows only alive and "
        "dead",
        versions="0.23 to 0.32",
        off=ANOTHER,
        optional=True,
        loaded=True,
        everywhere=True,
    ),
)

MANUAL_PATCHES = (
    ManualPatch(
        "the same, during a call of update_weights",
        "ascend_quant.integrations.vllm.serving.calls:_read_to_its_end",
        why="an error in it ends vLLM's reading of the update, and its sender then waits forever in a broadcast",
        versions="those that have the method",
        off=ANOTHER,
    ),
)
