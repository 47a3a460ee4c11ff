"""The cause of a failed run, as it is told: at most five lines, of which the first is the exception.

An exception that is a mere consequence of another process's end is no cause; CONSEQUENCE has those, FIXES what helps.
The texts are those of Ray 2.60, torch 2.11 and 2.13, transformers 5.9 and 5.10, vLLM 0.23 and 0.28; those of NPUs
are from memory.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.tracebacks import Chain, Raised, exceptions, plain

LONGEST = 400  # characters of a line; CUDA's out-of-memory message has 380
STEP = re.compile(r"(?:^|\s)step:\d+ - ")  # verl's console logger: what was wrong before a whole step did not end it
CONSEQUENCE = re.compile(
    r"^(?:[\w.]*\.)?(?:Ray)?(?:ActorDied|ActorUnavailable|Actor|WorkerCrashed|NodeDied|OwnerDied|ObjectLost)Error\b"
    r"|^(?:[\w.]*\.)?(?:EngineDeadError|TaskCancelledError|CancelledError|AsyncioActorExit|SenderGone)\b"
    r"|^(?:[\w.]*\.)?(?:KeyboardInterrupt|SystemExit|EOFError|BrokenPipeError|Connection\w*Error|ContextTerminated)\b"
    r"|^(?:[\w.]*\.)?Dist(?:Backend|Network|Store)Error\b"
    r"|[Cc]onnection (?:closed|reset) by|Broken pipe|Timed out waiting|Socket Timeout|collective operation timeout"
    r"|the trainer closed .* before its last bucket|no trainer has sent weights"
    r"|Engine core initialization failed|initialization failed due to an exception|Executor failed\."
    r"|^hydra\.errors\.InstantiationException: Error in call to target"  # raised while another one was handled
    r"|no materializable trajectories"  # verl: every prompt failed, and was logged when it did
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
        r"^AssertionError: in __init__ \(.*optimizer_param_scheduler\.py",
        "megatron-core wants a warm-up shorter than the run: lower actor.optim.lr_warmup_steps, or train more steps",
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


@dataclass(frozen=True)
class Cause:
    """Why a run failed.

    Attributes:
        error: `Type: message`.
        where: the process, its host, its pid, as far as they are known.
        log: the file, with the line where it stands there.
        fix: what to do; empty where nobody knows.
    """

    error: str
    where: str = ""
    log: str = ""
    fix: str = ""

    def lines(self) -> list[str]:
        """For people; what is not known has no line."""
        told = (("cause", self.error), ("where", self.where), ("log", self.log), ("fix", self.fix))
        return [f"{name}: {' '.join(text.split())[:LONGEST]}" for name, text in told if text]


def telling(chain: Chain) -> Raised:
    """Of exceptions that were raised one while the other was handled: the last one that is no mere consequence."""
    return next((one for one in reversed(chain) if not consequence(one.text)), chain[-1])


def primary(found: Iterable[Raised]) -> Raised | None:
    """The first one with a traceback that is no mere consequence."""
    return next((one for one in found if not one.bare and not consequence(one.text)), None)


def first(lines: Sequence[str]) -> Raised | None:
    """What ended the process whose log this is: of its own last exception if that tells it, else of those before.

    Other processes' tracebacks may be of what they have handled; the last one of the log's own process was not.
    """
    chains = since_last_step(lines)
    found = [telling(chain) for chain in chains]
    own = [telling(chain) for chain in chains if writer(lines[chain[-1].line - 1]) == () and not chain[-1].bare]
    if own and not consequence(own[-1].text):
        return own[-1]
    return primary(found) or next(iter(own), None) or next(iter(found), None)


def since_last_step(lines: Sequence[str]) -> list[Chain]:
    """The exceptions after the last step that was whole."""
    begin = next((number for number in range(len(lines), 0, -1) if STEP.search(lines[number - 1])), 0)
    return exceptions([*[""] * begin, *lines[begin:]])


def writer(line: str) -> tuple[int, ...]:
    """The processes that a line of a log names as its writers; none for the one whose log it is."""
    return plain(line).pids


def of_log(log: Path) -> Cause | None:
    """The cause in one log that holds everything; None when no line of it looks like an exception."""
    raised = first(log.read_text(errors="replace").splitlines())
    if raised is None:
        return None
    host = raised.ip or ""
    pid = f"pid {raised.pid}" if raised.pid else ""
    where = ", ".join(filter(None, (raised.process, host, pid)))
    return Cause(raised.text, where, f"{log}:{raised.line}", fix(raised.text) or "")


def consequence(text: str) -> bool:
    """Whether `Type: message` comes from the end of another process, whose own error says more."""
    return CONSEQUENCE.search(text) is not None


def fix(text: str) -> str | None:
    """What helps against `Type: message`; None where nobody knows."""
    if missing := MISSING.search(text):
        name = missing["name"]
        return f"install {name} for the run's Python, or is that not the stack's? (`python`, `image` in the inventory)"
    return next((advice for pattern, advice in FIXES if re.search(pattern, text)), None)
