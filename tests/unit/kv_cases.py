"""The largest |q|, |k| and |v| of each layer or channel, computed again in float64 from what goes into attention."""

import copy
from collections.abc import Iterable

import torch


def rotated(x_BHSD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """By pairs of elements half a head apart, as RoPE is defined."""
    half = x_BHSD.shape[-1] // 2
    a, b = x_BHSD[..., :half], x_BHSD[..., half:]
    cos, sin = (one.unsqueeze(1)[..., :half] for one in (cos, sin))
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


@torch.no_grad()
def largest(
    model: torch.nn.Module, texts: Iterable[torch.Tensor], by_channel: bool = False
) -> dict[str, list[list[float]]]:
    """By the attention's name, of q, k and v: one, or one of each channel of each head.

    Args:
        texts: of (1, S), one at a time.
    """
    model = copy.deepcopy(model).double().eval()
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")  # others know no float64
    found: dict[str, list[torch.Tensor]] = {}

    def look(name: str, attention: torch.nn.Module):
        def hook(_, args, kwargs):
            hidden = kwargs["hidden_states"]
            parts = []
            for kind in "qkv":
                x = getattr(attention, f"{kind}_proj")(hidden).unflatten(-1, (-1, attention.head_dim))
                if (norm := getattr(attention, f"{kind}_norm", None)) is not None:
                    mean = x.pow(2).mean(-1, keepdim=True)
                    x = x * torch.rsqrt(mean + norm.variance_epsilon) * norm.weight
                x = x.transpose(1, 2)
                parts.append(x if kind == "v" else rotated(x, *kwargs["position_embeddings"]))
            maxima = [part.abs().amax((0, 2)).flatten() if by_channel else part.abs().max().view(1) for part in parts]
            before = found.get(name, maxima)
            found[name] = [torch.maximum(*pair) for pair in zip(before, maxima, strict=True)]

        return hook

    for name, module in model.named_modules():
        if name.endswith("self_attn"):
            module.register_forward_pre_hook(look(name, module), with_kwargs=True)
    for ids in texts:
        model(input_ids=ids, use_cache=False)
    return {name: [one.tolist() for one in maxima] for name, maxima in found.items()}
