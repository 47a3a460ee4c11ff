"""Small models with something planted, and what `mismatch` sees in them: transformers' layers, our looks, no engine."""

from collections.abc import Callable

import torch
from torch import nn

from ascend_quant.mismatch.layer_errors import EXACT, mixtures, product
from ascend_quant.mismatch.layers import LayerError, ranked
from ascend_quant.mismatch.seen import EmbeddingSeen, HeadSeen, Seen
from ascend_quant.schemes import get_scheme

BLOCKS, HIDDEN, EXPERTS, WORDS = 4, 128, 8, 61
CHANNELS = [5, 40, 77, 101]


def dense(seed: int = 0, **options) -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _made(Qwen2ForCausalLM, Qwen2Config, seed, {"intermediate_size": 192, **options})


def mixture_model(seed: int = 0) -> nn.Module:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    options = {"head_dim": 32, "moe_intermediate_size": 96, "num_experts": EXPERTS, "num_experts_per_tok": 2}
    return _made(Qwen3MoeForCausalLM, Qwen3MoeConfig, seed, options)


def _made(model_class: type, config_class: type, seed: int, options: dict) -> nn.Module:
    torch.manual_seed(seed)
    shape = {"vocab_size": WORDS, "hidden_size": HIDDEN, "num_hidden_layers": BLOCKS, "num_attention_heads": 4}
    config = config_class(**shape, num_key_value_heads=2, tie_word_embeddings=False, **options)
    model = model_class(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
            parameter.copy_(parameter.bfloat16())
    return model


def planted(model: nn.Module, change: Callable[[nn.Module], None]) -> nn.Module:
    with torch.no_grad():
        change(model)
    return model


def heavy(weight: torch.Tensor, seed: int) -> None:
    """One element of a hundred is forty times larger."""
    drawn = torch.rand(weight.shape, generator=torch.Generator().manual_seed(seed))
    weight.mul_(torch.where(drawn < 0.01, 40.0, 1.0))


def one_layer(model: nn.Module) -> None:
    heavy(model.model.layers[2].self_attn.o_proj.weight, 3)


def one_kind(model: nn.Module) -> None:
    for block in model.model.layers:
        heavy(block.mlp.down_proj.weight, 4)


def one_expert(model: nn.Module) -> None:
    model.model.layers[1].mlp.experts.down_proj[3, :, ::36] *= 60


def inputs_of_all(model: nn.Module) -> None:
    """Norms enlarge channels, weights undo it: the same function."""
    for block in model.model.layers:
        attention, mlp = block.self_attn, block.mlp
        feeds = [
            (block.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (block.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ]
        for norm, linears in feeds:
            norm.weight[CHANNELS] *= 60
            for linear in linears:
                linear.weight[:, CHANNELS] /= 60


def written_channels(model: nn.Module) -> None:
    """The first block writes large channels into the hidden state; its own layers are well."""
    model.model.layers[0].mlp.down_proj.weight[CHANNELS] *= 100


def embedding(model: nn.Module) -> None:
    model.model.embed_tokens.weight[:, CHANNELS] *= 100


def head(model: nn.Module) -> None:
    model.lm_head.weight[:, CHANNELS] *= 60


def biased_keys(value: float, pairs: int, seed: int = 0) -> Callable[[nn.Module], None]:
    """So many channels of each head of the keys have a bias of +-value, no two of them rotated together."""

    def change(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(seed)
        for block in model.model.layers:
            attention = block.self_attn
            bias_GD, half = attention.k_proj.bias.view(-1, attention.head_dim), attention.head_dim // 2
            for of_head_D in bias_GD:
                channels = torch.randperm(half, generator=generator)[:pairs]
                second, sign = torch.randint(2, (2, pairs), generator=generator)
                of_head_D[channels + half * second] = value * (1.0 - 2 * sign)

    return change


def everything(model: nn.Module) -> None:
    for block in model.model.layers:
        for number, linear in enumerate(part for part in block.modules() if isinstance(part, nn.Linear)):
            heavy(linear.weight, number)


def looked_at(model: nn.Module, scheme: str = "int8") -> tuple[list[LayerError], list[dict]]:
    """The layers and tables, as the BF16 engine's worker tells them; q, k, v, gate and up apart."""
    chosen, looks = get_scheme(scheme), {}

    def linear(name: str):
        def hook(module, given, out):
            x_MK = given[0].reshape(-1, given[0].shape[-1])
            looks[name][0].add(x_MK, *(product(x_MK, module.weight, one) for one in (chosen, EXACT)))

        return hook

    def experts(name: str):
        def hook(module, given, out):
            x_MK, ids, weights = given
            pair = module.gate_up_proj, module.down_proj
            *outs, ratios = mixtures(x_MK, weights, ids, *pair, scheme=chosen)
            looks[name][0].add(x_MK, *outs)
            for expert, ratio in ratios.items():
                looks[name][0].add_expert(expert, ratio)

        return hook

    embedding, head = EmbeddingSeen("model.embed_tokens"), HeadSeen()
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(lambda _, given, out: embedding.add(out))
        elif name == "lm_head":
            module.register_forward_hook(lambda one, given, out: head.add("lm_head", one.weight, given[0][0]))
        elif isinstance(module, nn.Linear):
            looks[name] = Seen(name), [module.weight]
            module.register_forward_hook(linear(name))
        elif name.endswith(".experts"):
            looks[name] = Seen(name), [module.gate_up_proj, module.down_proj]
            module.register_forward_hook(experts(name))
    ids = torch.randint(WORDS, (1, 200), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model(ids)
        told = [seen.summary(weights, chosen) for seen, weights in looks.values()]
        return ranked([told], scheme), [embedding.summary(), head.summary()]
