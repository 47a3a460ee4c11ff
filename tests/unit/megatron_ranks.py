"""The checks that each rank of test_megatron_qat.py runs: real Megatron-core models, tensor parallel over gloo, on CPU.

The reference is a second model of the same classes whose weights were gathered, fake-quantized whole by the oracle, and
cut again.
"""

import copy
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from gloo_ranks import join, leave
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import experts as moe_experts
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig
from qat_cases import engine_weight

from ascend_quant.integrations.megatron import apply_fake_quantization

SCHEME = "int4_g32"
HIDDEN, EXPERTS, LENGTH = 64, 4, 12
GroupedMLP = getattr(moe_experts, "GroupedMLP", None)  # megatron-core 0.18 has none without TransformerEngine


def check(rank: int, ranks: int, folder: Path, cases: list[tuple]) -> None:
    """Run checks of this module, each given by its name and its arguments, one after the other."""
    start(rank, ranks, folder)
    for name, *arguments in cases:
        globals()[name](ranks, *arguments)
    leave()


def start(rank: int, ranks: int, folder: Path) -> None:
    join(rank, ranks, folder)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    torch.cuda.current_device = lambda: "cpu"  # Megatron-core's buffers are made there
    initialize_rng_tracker(inference_rng_tracker=True)  # the one that touches no GPU; there is no dropout
    moe_utils.te_general_gemm = None  # megatron-core 0.16.1 leaves it undefined without TransformerEngine
    if GroupedMLP:
        from megatron.core.transformer.moe import grouped_gemm_util

        grouped_gemm_util.grouped_gemm = grouped_gemm_util.ops = SimpleNamespace(gmm=grouped_product)  # GPUs only


def grouped_product(x, w, counts, trans_b):
    parts = x.split(counts.tolist())
    return torch.cat([part @ (one.T if trans_b else one) for part, one in zip(parts, w, strict=True)])


def config_of(ranks: int, experts: bool) -> TransformerConfig:
    return TransformerConfig(
        num_layers=2,
        hidden_size=HIDDEN,
        ffn_hidden_size=2 * HIDDEN,
        num_attention_heads=4,
        num_query_groups=2,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        normalization="RMSNorm",
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        use_cpu_initialization=True,
        params_dtype=torch.bfloat16,
        bf16=True,
        tensor_model_parallel_size=ranks,
        num_moe_experts=EXPERTS if experts else None,
        moe_ffn_hidden_size=HIDDEN if experts else None,
        moe_token_dispatcher_type="allgather",
        moe_router_load_balancing_type="none",
    )


def gpt(config: TransformerConfig) -> GPTModel:
    torch.manual_seed(1)
    layer = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, moe_grouped_gemm=False, normalization="RMSNorm"
    )
    return GPTModel(config, layer, 64, LENGTH, position_embedding_type="learned_absolute")


def wrapped(model: GPTModel, config: TransformerConfig) -> DistributedDataParallel:
    """Wrap a model as trainers do: BF16 weights, whose gradients are summed in float32 (main_grad)."""
    settings = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
    return DistributedDataParallel(config, settings, Float16Module(config, model))


def whole(w: torch.Tensor, dimension: int) -> torch.Tensor:
    parts = [torch.empty_like(w) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, w.detach().contiguous())
    return torch.cat(parts, dimension)


def quantize_by_hand(w: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return this rank's part of the engine's values for the whole weight (..., N, K), which is split in one axis."""
    served = engine_weight(whole(w, dimension), SCHEME)
    return served.chunk(dist.get_world_size(), dimension)[dist.get_rank()]


def is_quantized(name: str) -> bool:
    return "linear_" in name and name.endswith(".weight")


def run(model: DistributedDataParallel) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the logits, and the gradients that an optimizer would use."""
    model.zero_grad_buffer()
    model.eval()  # without dropout nothing else changes, and Megatron-core asks experts for sequence parallelism
    ids = torch.arange(LENGTH).view(1, -1)
    mask = torch.ones(1, 1, LENGTH, LENGTH).tril().logical_not()
    logits = model(ids, ids, mask)
    logits.float().square().mean().backward()
    model.finish_grad_sync()
    return logits.detach(), {name: w.main_grad.clone() for name, w in model.module.module.named_parameters()}


def check_gpt(ranks: int, experts: bool) -> None:
    config = config_of(ranks, experts)
    model, reference = (wrapped(gpt(config), config) for _ in range(2))
    weights = dict(model.module.module.named_parameters())
    before = {key: w.detach().clone() for key, w in weights.items()}
    quantized = [key for key in weights if is_quantized(key)]
    for key, w in reference.module.module.named_parameters():
        if is_quantized(key):
            w.data.copy_(quantize_by_hand(w.data, w.partition_dim))
    for module in model.modules():
        if hasattr(module, "gradient_accumulation_fusion") and "output" not in str(module):
            module.gradient_accumulation_fusion = True  # as on a GPU, where its kernel is

    applied = apply_fake_quantization([model], SCHEME)
    assert sorted(f"{layer}.weight" for layer in applied.quantized) == sorted(quantized)
    assert applied.unquantized == ["output_layer"]
    model.module.module.output_layer.gradient_accumulation_fusion = False
    (logits, found), (expected_logits, expected) = run(model), run(reference)
    assert torch.equal(logits, expected_logits)
    for key in expected:
        assert torch.equal(found[key], expected[key]), key
    assert all(found[key].any() for key in quantized)
    assert all(w is weights[key] and torch.equal(w, before[key]) for key, w in model.module.module.named_parameters())


def check_grouped(ranks: int) -> None:
    """Check GroupedMLP, which has the transposed weights of all experts in one matrix."""
    config = config_of(ranks, experts=True)
    torch.manual_seed(1)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    model = GroupedMLP(EXPERTS, config, groups)
    reference = copy.copy(model)
    reference._parameters = {key: torch.nn.Parameter(w.detach().clone()) for key, w in model.named_parameters()}
    for w, shape, split in (
        (reference.weight1, (EXPERTS, HIDDEN, -1), 1),
        (reference.weight2, (EXPERTS, -1, HIDDEN), 2),
    ):
        rows = w.data.view(shape).transpose(1, 2)  # (E, output, input): the first is split by outputs
        w.data.copy_(quantize_by_hand(rows, split).transpose(1, 2).reshape(w.shape))
    applied = apply_fake_quantization(torch.nn.ModuleDict({"experts": model}), SCHEME)
    assert applied.quantized == ["experts"]

    x, counts = torch.randn(10, HIDDEN, dtype=torch.bfloat16), torch.tensor([3, 0, 5, 2])
    results = []
    for one in (model, reference):
        out, _ = one(x, counts, torch.ones(10))
        out.float().square().mean().backward()
        results.append([out, one.weight1.grad, one.weight2.grad])
    assert all(torch.equal(ours, theirs) and ours.any() for ours, theirs in zip(*results, strict=True))


def check_refusal(ranks: int, name: str, ignore: list[str], words: str) -> None:
    model = gpt(config_of(ranks, experts=False))
    try:
        apply_fake_quantization(model, name, ignore)
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError("no error")


def check_ignored(ranks: int) -> None:
    """Check that layers are ignored by the engine's names, fused ones as a whole."""
    recipe = [r"re:.*(self_attn|shared_experts|mlp\.(gate|up|gate_up|down)_proj).*"]
    applied = apply_fake_quantization(gpt(config_of(ranks, experts=True)), SCHEME, recipe)
    assert len(applied.quantized) == 2 * EXPERTS * 2 and all("experts" in name for name in applied.quantized)
    model = gpt(config_of(ranks, experts=False))
    model.decoder.layers[1].layer_number = 8  # as the second stage of a pipeline counts
    names = ["model.layers.7.mlp.gate_proj", "model.layers.7.mlp.up_proj", "model.layers.0.self_attn.o_proj"]
    applied = apply_fake_quantization(model, SCHEME, [*names, "decoder.layers.0.mlp.linear_fc2"])
    left = ("0.self_attention.linear_proj", "0.mlp.linear_fc2", "1.mlp.linear_fc1")
    assert applied.unquantized == [*(f"decoder.layers.{name}" for name in left), "output_layer"]
    left = ("0.mlp.down_proj", "0.self_attn.o_proj", "7.mlp.gate_up_proj")  # whichever rank holds them
    assert applied.in_engine.names == tuple(f"model.layers.{name}" for name in left)


class Linear(torch.nn.Module):
    """A stand-in for TransformerEngine's layers, which no CPU stack has: the names of module, class and parameters."""

    def __init__(self, rows: int, columns: int, count: int):
        super().__init__()
        self.layer_norm_weight, self.fuse_wgrad_accumulation = torch.nn.Parameter(torch.ones(columns)), True
        for i in range(count):
            name = f"weight{i}" if count > 1 else "weight"
            setattr(self, name, torch.nn.Parameter(torch.randn(rows, columns, dtype=torch.bfloat16)))

    def forward(self) -> dict[str, torch.Tensor]:
        return {name: getattr(self, name) for name in self._parameters}


Linear.__module__ = "transformer_engine.pytorch.module.linear"
TERowParallelGroupedLinear = type("TERowParallelGroupedLinear", (Linear,), {})
TEFusedMLP = type("TEFusedMLP", (torch.nn.Module,), {})
TEGroupedMLP = type("TEGroupedMLP", (torch.nn.Module,), {"_with_fused_impl": True})


def check_transformer_engine(ranks: int) -> None:
    torch.manual_seed(2 + dist.get_rank())
    for kind, count, split in ((Linear, 1, 0), (TERowParallelGroupedLinear, 3, 1)):
        layer = kind(8, 32, count)
        before = {name: w.detach().clone() for name, w in layer.named_parameters()}
        applied = apply_fake_quantization(torch.nn.ModuleDict({"linear_fc": layer}), SCHEME)
        assert applied.quantized == ["linear_fc"] and not layer.fuse_wgrad_accumulation
        assert type(layer).__name__ == kind.__name__  # by which Megatron-Bridge knows how it is split
        shown = layer()
        for name, w in before.items():
            weight = name != "layer_norm_weight"
            assert torch.equal(shown[name], quantize_by_hand(w, split) if weight else w), name
    for fused in (TEFusedMLP(), TEGroupedMLP()):
        try:
            apply_fake_quantization(fused, SCHEME)
        except ValueError as error:
            assert "use_transformer_engine_op_fuser=False" in str(error)
        else:
            raise AssertionError("no error")
