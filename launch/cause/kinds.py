"""What an exception's text tells: whether it is a mere consequence of another process's end, and what helps.

The texts are those of Ray 2.60, torch 2.11 and 2.13, transformers 5.9 and 5.10, vLLM 0.23 and 0.28; those of NPUs
are from memory.
"""

import re

CONSEQUENCE = re.compile(
    r"^(?:[\w.]*\.)?(?:Ray)?(?:ActorDied|ActorUnavailable|Actor|WorkerCrashed|NodeDied|OwnerDied|ObjectLost)Error\b"
    r"|^(?:[\w.]*\.)?(?:EngineDeadError|TaskCancelledError|CancelledError|AsyncioActorExit|SenderGone)\b"
    r"|^(?:[\w.]*\.)?(?:KeyboardInterrupt|SystemExit|EOFError|BrokenPipeError|Connection\w*Error|ContextTerminated)\b"
    r"|^(?:[\w.]*\.)?Dist(?:Backend|Network|Store)Error\b"
    r"|[Cc]onnection (?:closed|reset) by|Broken pipe|Timed out waiting|Socket Timeout|collective operation timeout"
    r"|the trainer closed .* before its last bucket|no trainer has sent weights"
    r"|Engine core initialization failed|initialization failed due to an exception|Executor failed\."
    r"|Worker failed with error '|\bEI000[26]\b",  # HCCL: a peer did not answer, a socket did not come up
)
MISSING = re.compile(r"No module named '(?P<name>\w+)")
HOST_MEMORY = "host memory: see what else uses it on that host, and offload less (offload_policy, param_offload)"
FIXES = (
    (
        r"FlashAttention\S* has been toggled on|FlashAttention\S* .*doesn't seem to be installed",
        "this stack has no flash-attn: take `attn_implementation` out of what follows --, the recipe has its own",
    ),
    (
        r"^(?:[\w.]*\.)?(?:ImportError|ModuleNotFoundError)\b|the package .* is not installed",
        "is this the Python of the stack? (`python` or `image` in the inventory; ./run.sh doctor)",
    ),
    (
        r"No available memory for the cache blocks|larger than the available KV cache",
        "give the engine more: actor_rollout_ref.rollout.gpu_memory_utilization; or ask less: rollout.max_model_len",
    ),
    (
        r"Free memory on device",
        "another process holds the device (nvidia-smi, npu-smi): end it, or lower rollout.gpu_memory_utilization",
    ),
    (r"^ray\.exceptions\.OutOfMemoryError|^HostOutOfMemory|DefaultCPUAllocator|^MemoryError|\[Errno 12\]", HOST_MEMORY),
    (
        r"OutOfMemoryError|(?:CUDA|NPU|HIP) out of memory",
        "device memory: lower actor.ppo_max_token_len_per_gpu (or the micro batch), or rollout.gpu_memory_utilization",
    ),
    (
        r"^Crash: SIGBUS|Bus error|/dev/shm|No space left on device.*(?:shm|psm_)",
        "/dev/shm is full: give the container more (--shm-size, --ipc host), and look for what is left there",
    ),
    (r"No space left on device|OutOfDiskError", "a disk is full there: see `df -h` for --out, /tmp and the caches"),
    (
        r"Address already in use|EADDRINUSE",
        "another program has the port: end it, or choose `ports` in the inventory (./run.sh doctor names it)",
    ),
    (
        r"unrecognized arguments: ",
        "vLLM has no such option: correct actor_rollout_ref.rollout.engine_kwargs.vllm",
    ),
    (
        r"^hydra\.errors\.|^omegaconf\.errors\.",
        "correct what follows --; ./run.sh recipe show RECIPE has the settings; + goes before one that verl lacks",
    ),
    (
        r"FileNotFoundError|No such file or directory|HFValidationError|OfflineModeIsEnabled|LocalEntryNotFound"
        r"|Incorrect path_or_model_id|Can't load the (?:configuration|model|tokenizer)",
        "is the path right, and there on every host? (--data, --model, and what follows --)",
    ),
    (
        r"^Killed|^ProcessDied",
        "who killed it? `dmesg` there tells if the kernel did; --restart N goes on from the last checkpoint",
    ),
)


def consequence(text: str) -> bool:
    """Whether `Type: message` comes from the end of another process, whose own error says more."""
    return CONSEQUENCE.search(text) is not None


def fix(text: str) -> str | None:
    """What helps against `Type: message`; None where nobody knows."""
    if missing := MISSING.search(text):
        name = missing["name"]
        return f"install {name} for the run's Python, or is that not the stack's? (`python`, `image` in the inventory)"
    return next((advice for pattern, advice in FIXES if re.search(pattern, text)), None)
