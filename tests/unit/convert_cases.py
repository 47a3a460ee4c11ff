"""Small checkpoints to convert, made of tensors alone, and what they become: computed by the oracle, or by hand."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ascend_quant import oracle
from ascend_quant.convert import Request, Summary, convert
from ascend_quant.files.documents import BadDocument
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.schemes import SCHEMES
from ascend_quant.schemes.layer_names import PatternError

REFUSED = (BadCheckpoint, BadDocument, PatternError)  # what the command says in one line
QUANTIZED = tuple(name for name, scheme in SCHEMES.items() if scheme.quantized)
WRITTEN = [  # every pair of a scheme and a format
    *((scheme, "compressed-tensors") for scheme in ("int8", "fp8", "int4_g128", "int4_g32")),
    ("fp8_block", "fp8"),
    ("fp8_tensor", "fp8"),
    ("int8", "modelslim"),
]
HIDDEN, MIDDLE, EXPERTS = 256, 128, 3
CONFIG = {"model_type": "qwen3_moe", "torch_dtype": "bfloat16", "hidden_size": HIDDEN, "name": "模型"}
LEFT = ["model.layers.1.mlp.gate", "model.layers.1.mlp.shared_expert_gate", "lm_head"]


def state(seed: int = 0, experts: bool = True, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """A dense layer and one with experts; rows that no block of 128 divides, a row of zeros, biases, odd shapes."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    made = {"model.embed_tokens.weight": normal(61, HIDDEN)}
    for layer in range(2):
        name = f"model.layers.{layer}"
        made[f"{name}.input_layernorm.weight"] = normal(HIDDEN)
        for leaf, rows in (("q_proj", 200), ("k_proj", 72), ("v_proj", 72), ("o_proj", HIDDEN)):
            made[f"{name}.self_attn.{leaf}.weight"] = normal(rows, HIDDEN)
        made[f"{name}.self_attn.q_proj.bias"] = normal(200)
        made[f"{name}.self_attn.k_proj.weight"][5] = 0
        owners = ["mlp"]
        if layer == 1 and experts:
            made[f"{name}.mlp.gate.weight"] = normal(EXPERTS, HIDDEN)
            made[f"{name}.mlp.shared_expert_gate.weight"] = normal(1, HIDDEN)
            owners = [f"mlp.experts.{expert}" for expert in range(EXPERTS)]
        for owner in owners:
            for leaf, shape in (("gate", (MIDDLE, HIDDEN)), ("up", (MIDDLE, HIDDEN)), ("down", (HIDDEN, MIDDLE))):
                made[f"{name}.{owner}.{leaf}_proj.weight"] = normal(*shape)
    made |= {"model.nothing": torch.empty(0, 4), "model.number": torch.tensor(2.5), "model.flags": torch.ones(5) > 0}
    return made | {"model.norm.weight": normal(HIDDEN), "lm_head.weight": normal(61, HIDDEN)}


def stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same with each layer's experts in two tensors."""
    kept = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    layer = "model.layers.1.mlp.experts"

    def stack(leaf: str) -> list[torch.Tensor]:
        return [tensors[f"{layer}.{expert}.{leaf}_proj.weight"] for expert in range(EXPERTS)]

    pairs = [torch.cat(pair) for pair in zip(stack("gate"), stack("up"), strict=True)]
    return kept | {f"{layer}.gate_up_proj": torch.stack(pairs), f"{layer}.down_proj": torch.stack(stack("down"))}


def write(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 3, config: dict = CONFIG) -> Path:
    """A checkpoint folder: one file, or several with an index; tensors are dealt out in turn."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    places = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensor for at, (name, tensor) in enumerate(tensors.items()) if at % shards == shard}
        save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def read(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder."""
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def run(source: Path, out: Path, scheme: str, **options) -> Summary:
    """A conversion that tests nothing but its result."""
    return convert(Request(source, out, scheme, **options))


def is_quantized(name: str) -> bool:
    return name.endswith("_proj.weight")


def expected(tensors: dict[str, torch.Tensor], scheme_name: str, format: str) -> dict[str, torch.Tensor]:
    """The tensors of the quantized checkpoint."""
    scheme, made = SCHEMES[scheme_name], {}
    for name, tensor in tensors.items():
        if not is_quantized(name):
            made[name] = tensor
            continue
        codes, scale = oracle.quantize(tensor, scheme)
        if scheme.codes == "int4":
            made[f"{name}_packed"], made[f"{name}_scale"] = oracle.pack_int4(codes), scale
            made[f"{name}_shape"] = torch.tensor(tensor.shape)
            continue
        leaf = "scale_inv" if scheme.shares == "block" else "scale"
        shape = {"row": (-1, 1), "tensor": (1,), "block": scale.shape}[scheme.shares]
        made[name], made[f"{name}_{leaf}"] = codes, scale.reshape(shape)
        if format == "modelslim":
            made[f"{name.removesuffix('weight')}weight_offset"] = torch.zeros(len(tensor), 1)
    return made


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Names, dtypes, shapes and bytes."""
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(*(one.contiguous().reshape(-1).view(torch.uint8) for one in (found[name], tensor))), name
