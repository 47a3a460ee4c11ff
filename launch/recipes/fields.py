"""The fields of a recipe file, with types and valid values. rules.py checks combinations."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ascend_quant.integrations.verl import EXACT
from ascend_quant.schemes import UnknownScheme, get_scheme
from launch import ROOT, variables

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
            raise ValueError(f"there is no {file} beside the recipe or in this repository, and it is no whole path")
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
        hub: its id on the hub; a run may name a folder in its place.
        folder: where `run.sh data` puts it, under the data folder, if it makes it; then there is no hub.
        experts: it is a mixture of experts, which not every engine serves in graphs.
    """

    hub: Said | None = None
    folder: Said | None = None
    experts: bool = False

    @model_validator(mode="after")
    def _is_somewhere(self) -> "Model":
        if (self.hub is None) == (self.folder is None):
            raise ValueError("give hub, or folder if run.sh data makes it")
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
        kv_cache: what keys and values are kept in: auto, BF16; int8, with a scale a token and head (on NPUs a channel);
            fp8, a layer.
        send: how the trainer sends what the engine quantizes: bf16, or as codes of `scheme`; delta: to engines apart,
            what has changed since the last weight sync, of codes where `scheme` has a scale a row.
        tensor_parallel: devices of a replica.
        expert_parallel: 1, or `tensor_parallel`: each device then has whole experts.
        apart: devices of each node that are the engine's alone, while the others train (verl's `separate_async`); 0:
            engine and trainer take turns on all of them.
        gpu_memory_utilization: share of a device's memory that the engine takes.
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

    `last_stage_layers` is for layers that the stages cannot share out evenly.
    """

    tensor: Count = 1
    pipeline: Count = 1
    context: Count = 1
    expert: Count = 1
    last_stage_layers: Count | None = None


class Training(Fields):
    """Fields of the trainer.

    Attributes:
        precision: of the products; fp8 needs `fp8` settings or takes their defaults.
        cpu_adam: optimizer states live, and are stepped, on the host; Megatron's.
        offload: weights and optimizer states wait on the host while the engine generates.
        reference_offload: so do the weights of the reference model, which is there for a KL loss.
        parallel: Megatron's; FSDP2 takes none.
        sequence_parallel: devices that share a sequence (Ulysses); FSDP2's.
        routing_replay: in a mixture of experts, a token goes to the experts that the engine chose for it (verl's R3);
            Megatron's.
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
        level: a weight for each token, or for each sequence.
        threshold: larger weights are cut to this.
        batch_normalize: divide by the batch's mean weight; without bypass alone (see effective.py).
        bypass: the rollout's log-probabilities stand for the old policy's: no pass over the batch to find them, and
            the plain policy gradient in place of PPO's clipped loss.
    """

    level: Literal["token", "sequence"]
    threshold: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    batch_normalize: bool = False
    bypass: bool = False


class Data(Fields):
    """Fields of the data: files, by whole paths or from the data folder, and their name in `run.sh data`, if any."""

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
        qat: the trainer's forward pass has the weights that the rollout's scheme, which this names, makes of its own;
            with int8_exact all of it is an int8 engine's, bit for bit.
        correction: left out where `qat` is int8_exact, whose two policies are one.
        files: what the job's working directory must hold: its name there, and the file, by its whole path, or as it
            lies beside the recipe or in this repository.
        environment: variables for every process, over those of the stack.
        verl: a tree of verl's own settings; a setting that a field here makes is refused in it.
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
        """True where the trainer computes the rollout's policy bit for bit."""
        return self.qat == EXACT

    @property
    def qat_scheme(self) -> str | None:
        """Scheme by which the trainer's forward pass is fake-quantized (QAT); None if it is not."""
        return "int8" if self.is_exact else self.qat

    @property
    def fp8(self) -> Fp8 | None:
        """Settings of FP8 training; None if the precision is another."""
        return (self.training.fp8 or Fp8()) if self.training.precision == "fp8" else None
