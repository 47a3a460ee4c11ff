"""Which variables of a user's shell count for a run: those of the table, and those of its families.

Those of the families are handed on as they are. What names the shell's own host (an address, a NIC, devices) is not
handed to others, and neither is what ties a process to another Ray cluster.
"""

from collections.abc import Mapping

from launch.environment.table import TABLE

FAMILIES = (
    "ASCEND_GLOBAL_",
    "ASCEND_LAUNCH_",
    "ASCEND_SLOG_",
    "CUDA_DEVICE_",
    "CUDA_LAUNCH_",
    "FLASHRL_",
    "GLOO_",
    "HCCL_",
    "HF_",
    "HYDRA_",
    "MLFLOW_",
    "NCCL_",
    "OMP_",
    "PYTORCH_",
    "RAY_",
    "SWANLAB_",
    "TENSORBOARD_",
    "TORCH_",
    "TRANSFORMERS_",
    "VERL_",
    "VLLM_",
    "WANDB_",
)
OTHER_CLUSTERS = (
    "RAY_ADDRESS",
    "RAY_API_SERVER_ADDRESS",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_JOB_CONFIG_JSON_ENV_VAR",
    "RAY_JOB_HEADERS",
    "RAY_NAMESPACE",
    "RAY_TMPDIR",
)
SECRETS = ("KEY", "TOKEN", "PASSWORD", "SECRET")
OF_HOST = frozenset(variable.name for variable in TABLE if variable.of_host)
NAMES = frozenset(variable.name for variable in TABLE)


def counts(name: str) -> bool:
    """Whether a variable of a shell is one for a run."""
    return name not in OTHER_CLUSTERS and (name in NAMES or name.startswith(FAMILIES))


def of_shell(shell: Mapping[str, str], own: bool) -> dict[str, str]:
    """What a shell says to a host: its own host (`own`), or another."""
    return {name: value for name, value in shell.items() if counts(name) and (own or name not in OF_HOST)}


def not_handed_on(shell: Mapping[str, str]) -> list[str]:
    """The names in a shell that count on its own host alone."""
    return sorted(OF_HOST & set(shell))


def shown(name: str, value: str) -> str:
    """A value as it may be printed."""
    secret = any(word.endswith(SECRETS) for word in name.upper().split("_"))
    return "***" if secret and value else value
