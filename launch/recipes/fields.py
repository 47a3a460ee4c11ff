"""The fields of a recipe file, with types and valid values. rules.py checks combinations."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ascend_quant.integrations.verl import EXACT
from ascend_quant.schemes import UnknownScheme, get_scheme
from launch import ROOT
from launch.environment import variables

Stack = Literal["cpu", "ascend-cann8.5", "ascend-cann9.1", "cuda13"]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
SchemeName = Annotated[str, AfterValidator(lambda name: get_scheme(name).name)]


def _trained_for(name: str) -> str:
    try:
        return EXACT if name == EXACT else get_scheme(name).name
    except UnknownScheme as error:
        raise ValueError(f"{error}; or {EXACT}") from error


def _files(value: dict[str, str]) -> dict[str, str]:
    for file in value.values():
        if not (ROOT / file).is_file():
            raise ValueError(f"{file} is not an absolute path, and is neither beside the recipe nor in this repository")
    return value


Said = Annotated[str, Field(min_length=1)]
Files = Annotated[dict[str, str], AfterValidator(_files)]
Variables = Annotated[dict[str, str], AfterValidator(variables.checked)]


class Fields(BaseModel):
    """Base of a recipe's parts: no unknown key, no conversion of values, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Model(Fields):
    """Fields of the model.

    Attributes:
        hub: its id on the hub; a run may name a folder instead.
        folder: its folder under the data folder, if `run.sh data` creates it; hub is then unset.
        experts: whether it is a mixture of experts, which not every engine supports in graphs.
    """

    hub: Said | None = None
    folder: Said | None = None
    experts: bool = False

    @model_validator(mode="after")
    def _is_somewhere(self) -> "Model":
        if (self.hub is None) == (self.folder is None):
            raise ValueError("set hub, or folder if run.sh data creates it")
        return self

    @property
    def place(self) -> str:
        """Model id on the hub, or the model's folder under the data folder."""
        return self.hub or self.folder


class Rollout(Fields):
    """Fields of the rollout engine: vLLM with weights that are re-quantized in place at every step.

    Attributes:
        scheme: a name from `ascend_quant.schemes`.
        ignore: layers that stay BF16: a full name, or re:PATTERN.
        kv_cache: the form of keys and values: auto, BF16; int8, with one scale per token and head (on NPUs per
            channel); fp8, with one scale per layer.
        send: how the trainer sends quantized layers: bf16, or pre-quantized by `scheme`; delta: to disaggregated
            engines, only what has changed since the last weight sync, pre-quantized if `scheme` has one scale per row.
        tensor_parallel: devices of a replica.
        expert_parallel: 1, or `tensor_parallel`, in which case each device has whole experts.
        apart: devices of each node that only the engine uses, while the others train (verl's `separate_async`); 0:
            engine and trainer take turns on all devices.
        gpu_memory_utilization: fraction of a device's memory that the engine uses.
        max_prompt_length, max_response_length: tokens.
        n: samples of a prompt.
    """

    scheme: SchemeName
    ignore: list[Said] = []
    kv_cache: Literal["auto", "int8", "fp8"] = "auto"
    send: Literal["bf16", "int8", "fp8", "delta"] = "bf16"
    tensor_parallel: Count
    expert_parallel: Count = 1
    apart: Annotated[int, Field(ge=0)] = 0
    gpu_memory_utilization: Share
    max_prompt_length: Count
    max_response_length: Count
    n: Annotated[int, Field(ge=2)]


class Fp8(Fields):
    """Fields of FP8 training by TransformerEngine: slime's --fp8-format, --fp8-recipe and --fp8-param-gather."""

    format: Literal["e4m3", "hybrid"] = "e4m3"
    recipe: Literal["blockwise", "tensorwise", "delayed"] = "blockwise"
    param_gather: bool = False


class Parallel(Fields):
    """Fields of Megatron's tensor, pipeline, context and expert parallelism: the devices that share each.

    `last_stage_layers` is needed if the layers cannot be split evenly over the stages.
    """

    tensor: Count = 1
    pipeline: Count = 1
    context: Count = 1
    expert: Count = 1
    last_stage_layers: Count | None = None


class Training(Fields):
    """Fields of the trainer.

    Attributes:
        precision: precision of the GEMMs; fp8 uses the settings in `fp8`, or their defaults.
        cpu_adam: keep and step the optimizer states on the host; Megatron only.
        offload: move weights and optimizer states to the host while the engine generates.
        reference_offload: also move the weights of the reference model, which a KL loss needs.
        parallel: Megatron only.
        sequence_parallel: devices that share a sequence (Ulysses); FSDP2 only.
        routing_replay: in a mixture of experts, route each token to the experts that the engine chose for it (verl's
            R3); Megatron only.
    """

    precision: Literal["bf16", "fp8"] = "bf16"
    fp8: Fp8 | None = None
    cpu_adam: bool = False
    offload: bool = False
    reference_offload: bool = False
    parallel: Parallel | None = None
    sequence_parallel: Count = 1
    routing_replay: bool = False


class Correction(Fields):
    """Truncated importance sampling (TIS): importance weights between the rollout's policy and the trainer's.

    Attributes:
        level: one weight per token, or per sequence.
        threshold: larger weights are clipped to this.
        batch_normalize: divide by the batch's mean weight; only without bypass (see effective.py).
        bypass: use the rollout's log-probabilities as the old policy's: no forward pass computes them, and the loss is
            the plain policy gradient instead of PPO's clipped loss.
    """

    level: Literal["token", "sequence"]
    threshold: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    batch_normalize: bool = False
    bypass: bool = False


class Data(Fields):
    """Fields of the data: files, as absolute paths or in the data folder, and their name in `run.sh data`, if any."""

    name: Said | None = None
    train: Said
    validation: Said


class Memory(Fields):
    """Memory that the run needs, in GiB: of each device, and of each host."""

    device: Count
    host: Count


class Recipe(Fields):
    """Fields of a whole recipe.

    Attributes:
        qat: the scheme by which the trainer's forward pass is fake-quantized, which must be the rollout's; with
            int8_exact the whole forward pass equals an int8 engine's bit for bit.
        correction: unset if `qat` is int8_exact, since both policies are then equal.
        files: files for the job's working directory: the name there, and the file's absolute path, or its path beside
            the recipe or in this repository.
        environment: variables for every process, which override those of the stack.
        verl: a tree of verl's own settings; settings that belong to a field above are refused.
    """

    name: str
    summary: str
    model: Model
    stack: Stack
    nodes: Count
    devices_per_node: Count
    backend: Literal["fsdp2", "megatron"]
    rollout: Rollout
    training: Training = Training()
    qat: Annotated[str, AfterValidator(_trained_for)] | None = None
    correction: Correction | None = None
    data: Data
    memory: Memory
    files: Files = {}
    environment: Variables = {}
    verl: dict[str, Any] = {}

    @property
    def devices(self) -> int:
        """Number of devices of the whole run."""
        return self.nodes * self.devices_per_node

    @property
    def is_exact(self) -> bool:
        """True if the trainer computes the rollout's policy bit for bit."""
        return self.qat == EXACT

    @property
    def qat_scheme(self) -> str | None:
        """Scheme by which the trainer's forward pass is fake-quantized (QAT); None if it is not."""
        return "int8" if self.is_exact else self.qat

    @property
    def fp8(self) -> Fp8 | None:
        """Settings of FP8 training; None if the precision is another."""
        return (self.training.fp8 or Fp8()) if self.training.precision == "fp8" else None
