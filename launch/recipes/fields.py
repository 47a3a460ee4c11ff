"""The launcher's view of a composed recipe: its `recipe` node, and the settings of verl that the launcher uses.

Each field names its verl setting; rules.py checks combinations. `Recipe.verl` contains all of verl's settings.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from ascend_quant.integrations.verl import EXACT
from ascend_quant.recipes import leaves
from ascend_quant.recipes.keys import ACTOR, CORRECTION, OURS, QUANTIZATION, ROLLOUT, TRANSFORMER
from ascend_quant.recipes.node import Count, Fields, Node, Said
from ascend_quant.schemes import get_scheme
from launch.environment import variables

Share = Annotated[float, Field(gt=0, le=1)]
SchemeName = Annotated[str, AfterValidator(lambda name: get_scheme(name).name)]
APART = {"trainer.v1.trainer_mode": "separate_async"}
Variables = Annotated[dict[str, str], AfterValidator(variables.checked)]


def of(key: str, default: Any = ...) -> Any:
    """Return a field that is read from the verl setting `key`."""
    return Field(default, validation_alias=key)


class Rollout(Fields):
    """Fields of the rollout engine: vLLM, whose weights are re-quantized in place at every sync.

    They are read from verl settings, by their dotted keys; other settings are ignored.

    Attributes:
        scheme: name of a scheme in `ascend_quant.schemes`.
        ignore: layers that stay BF16, each as a full name or re:PATTERN.
        kv_cache: data type of the KV cache: auto (BF16), int8 (with one scale per token and head, or on NPUs per
            channel), or fp8 (with one scale per layer).
        send: how the trainer sends quantized layers: bf16, int8 or fp8 (pre-quantized by `scheme`), or delta (to
            disaggregated engines, only the changes since the last weight sync, pre-quantized if `scheme` has one scale
            per row).
        tensor_parallel: number of devices of a replica.
        expert_parallel: 1, or `tensor_parallel`, in which case each device has whole experts.
        apart: number of devices of each node that only the engine uses, while the others train; 0: engine and trainer
            take turns on all devices.
        gpu_memory_utilization: fraction of a device's memory that the engine uses.
        max_prompt_length, max_response_length: maximum lengths in tokens.
        n: number of samples per prompt.
    """

    model_config = ConfigDict(extra="ignore")

    scheme: SchemeName = of(f"{QUANTIZATION}.scheme", "bf16")
    ignore: list[Said] = of(f"{QUANTIZATION}.ignore", [])
    kv_cache: Literal["auto", "int8", "fp8"] = of(f"{QUANTIZATION}.kv_cache", "auto")
    send: Literal["bf16", "int8", "fp8", "delta"] = of(f"{OURS}.send", "bf16")
    tensor_parallel: Count = of(f"{ROLLOUT}.tensor_model_parallel_size")
    expert_parallel: Count = of(f"{ROLLOUT}.expert_parallel_size", 1)
    apart: Annotated[int, Field(ge=0)] = of(f"{ROLLOUT}.n_gpus_per_node", 0)
    gpu_memory_utilization: Share = of(f"{ROLLOUT}.gpu_memory_utilization")
    max_prompt_length: Count = of("data.max_prompt_length")
    max_response_length: Count = of("data.max_response_length")
    n: Annotated[int, Field(ge=2)] = of(f"{ROLLOUT}.n")


class Recipe(Node):
    """Fields of a whole recipe: those of its `recipe` node, and those that are read from verl settings.

    Attributes:
        nodes: number of nodes.
        training_devices: number of devices of each node on which the trainer runs.
        engine: verl's name for the trainer's backend.
        rollout: fields of the rollout engine.
        qat: the int4 scheme by which the trainer's forward pass is fake-quantized, which must be the rollout's; with
            int8_exact, the whole forward pass equals an int8 engine's bit for bit.
        correction: whether there is one importance weight per token, or per sequence; None without weights, as with
            int8_exact, where the engine's and the trainer's policies are equal.
        threshold: value to which larger weights are clipped.
        bypass: whether the rollout's log-probabilities are used as the old policy's. Then no forward pass computes
            them, and the loss is the plain policy gradient instead of PPO's clipped loss.
        sequence_parallel: number of devices that share a sequence (Ulysses); FSDP2 only.
        fp8, fp8_recipe: format and scales of FP8 training with TransformerEngine, which reads them only in its first
            forward pass; Megatron only.
        environment: variables for every process, which override those of the stack; HCCL's only on NPUs.
        files: absolute paths of files for the job's working directory, by their names there.
        verl: the tree of all verl settings that the recipe sets.
        extra: the user's verl settings, as Hydra overrides, which have priority.
    """

    model_config = ConfigDict(extra="ignore")

    nodes: Count = of("trainer.nnodes")
    training_devices: Count = of("trainer.n_gpus_per_node")
    engine: Literal["dp", "megatron"] = of("model_engine")
    rollout: Rollout
    qat: str | None = of(f"{OURS}.qat", None)
    correction: Literal["token", "sequence"] | None = of(f"{CORRECTION}.rollout_is", None)
    threshold: Annotated[float, Field(gt=0)] | None = of(f"{CORRECTION}.rollout_is_threshold", None)
    bypass: bool = of(f"{CORRECTION}.bypass_mode", False)
    sequence_parallel: Count = of(f"{ACTOR}.ulysses_sequence_parallel_size", 1)
    fp8: Literal["e4m3", "hybrid"] | None = of(f"{TRANSFORMER}.fp8", None)
    fp8_recipe: Literal["blockwise", "tensorwise", "delayed"] = of(f"{TRANSFORMER}.fp8_recipe", "blockwise")
    environment: Variables = Field(default={})
    verl: dict[str, Any] = Field(default={})
    extra: tuple[str, ...] = Field((), exclude=True)

    @property
    def backend(self) -> Literal["fsdp2", "megatron"]:
        """The trainer's backend."""
        return "megatron" if self.engine == "megatron" else "fsdp2"

    @property
    def devices_per_node(self) -> int:
        """Number of devices of each node, including those that only the engine uses."""
        return self.training_devices + self.rollout.apart

    @property
    def devices(self) -> int:
        """Number of devices of the whole run."""
        return self.nodes * self.devices_per_node

    @property
    def is_exact(self) -> bool:
        """True if the trainer computes the rollout's policy bit for bit."""
        return self.qat == EXACT

    @property
    def uses_plugin(self) -> bool:
        """True if our plugin builds the engine; it does not for BF16 on NPUs, where it serves no BF16 experts."""
        return self.setting(f"{QUANTIZATION}.quant_method") == "ascend_quant"

    def setting(self, key: str, default: Any = None) -> Any:
        """Return the value of a verl setting in the recipe, or the default if the recipe does not set it."""
        return dict(leaves(self.verl)).get(key, default)

    def count(self, key: str, default: int | None = None) -> int | None:
        """Return a setting that counts something; None if it is no positive number, which verl reads as none."""
        value = self.setting(key, default)
        return value if isinstance(value, int) and value > 0 else None


def given(node: Node, tree: Mapping[str, Any], extra: tuple[str, ...]) -> dict[str, Any]:
    """Return the input of `Recipe`'s validation: a composed recipe's node, and its verl settings by dotted keys."""
    verl = {key: value for key, value in tree.items() if key != "recipe"}
    settings = dict(leaves(verl))
    if any(settings.get(key) != value for key, value in APART.items()):
        settings.pop(f"{ROLLOUT}.n_gpus_per_node", None)
    return {**vars(node), **settings, "rollout": settings, "verl": verl, "extra": extra}
