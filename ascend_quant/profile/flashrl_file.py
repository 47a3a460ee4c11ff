"""FlashRL's own profiles, `.pt` files: read as a Profile, and written so that FlashRL takes them.

int8: a dict, name -> {input_scale, output_scale, type}. FlashRL computes
    codes = round(w_NK * output_scale_N1 * input_scale_1K), clamped to [-128, 127]
so output_scale is output_factor / scale. Only `up_proj` has an output factor there, and its `down_proj` the inverse as
input_scale; what is written here has `weight_scale` too, which FlashRL does not look at. fp8: a list of names.
(flash_rl/flash_quantization.py of flash-llm-rl 1.0.3.)
"""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch

from ascend_quant.profile.rules import Profile, ProfileError, Rule

KEYS = {"input_scale", "output_scale", "type"}
CLOSE = 1e-6  # float32: output_scale * weight_scale is 1 without an output factor


def read(path: Path) -> Profile:
    """A profile that FlashRL or `write` wrote.

    Raises:
        ProfileError: no such file, a file that carries code, or another content.
    """
    if not path.is_file():
        raise ProfileError(f"no profile at {path}; `ascend-quant profile` writes it")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ProfileError(f"{path} carries code, or is no file of tensors; it was not loaded: {error}") from error
    except Exception as error:  # what torch raises for a broken file depends on its bytes
        raise ProfileError(f"{path} is no file that torch.save wrote: {error}") from error
    notes = {"flashrl": path.name}
    if isinstance(content, list) and all(isinstance(name, str) for name in content):
        return Profile("fp8", {name: Rule(True) for name in content}, notes)
    if not isinstance(content, dict):
        raise ProfileError(f"{path} holds a {type(content).__name__}; a FlashRL profile is a dict or a list of names")
    return Profile("int8", {name: rule_of(content, name) for name in content}, notes)


def rule_of(content: Mapping[str, Mapping], name: str) -> Rule:
    """The rule of one entry."""
    entry = content[name]
    if not isinstance(entry, Mapping) or not set(entry) >= KEYS or not isinstance(entry["type"], torch.dtype):
        raise ProfileError(
            f"{name}: a FlashRL int8 profile has {', '.join(sorted(KEYS))} there, this has {entry!r:.200}"
        )
    input_factor, multiplier_N = vector(entry, "input_scale", name), vector(entry, "output_scale", name)
    if entry["type"] != torch.int8:
        return Rule(False, input_factor, multiplier_N)
    if multiplier_N is None:
        raise ProfileError(f"{name}: output_scale is 1 for an int8 weight; it must be 1 / weight_scale of each row")
    if "weight_scale" in entry:
        scale_N = vector(entry, "weight_scale", name)
        output_N = torch.where(scale_N == 0, 1.0, multiplier_N * scale_N)
    else:
        output_N = up_factor(content, name)
        scale_N = (torch.ones_like(multiplier_N) if output_N is None else output_N) / multiplier_N
    if output_N is not None and bool(((output_N - 1).abs() <= CLOSE).all()):
        output_N = None
    return Rule(True, input_factor, output_N, scale_N)


def up_factor(content: Mapping[str, Mapping], name: str) -> torch.Tensor | None:
    """The output factor (N) of an up_proj, from its down_proj; None for other layers."""
    consumer = name.replace(".up_proj.", ".down_proj.")
    if consumer == name or consumer not in content:
        return None
    factor_N = vector(content[consumer], "input_scale", consumer)
    return None if factor_N is None else 1 / factor_N


def vector(entry: Mapping, key: str, name: str) -> torch.Tensor | None:
    """One of an entry's numbers, flat and float32; None for 1."""
    value = entry[key]
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        value = value.detach().float().flatten()
        if bool(value.isfinite().all()):
            return value
    elif value == 1:
        return None
    raise ProfileError(f"{name}: {key} is {value!r:.200}; it must be 1, or finite numbers")


def write(profile: Profile, path: Path) -> Path:
    """Save in FlashRL's layout; returns the path."""
    content = [name for name, rule in profile.rules.items() if rule.quantized]
    if profile.scheme == "int8":
        content = {name: entry_of(rule) for name, rule in profile.rules.items()}
    torch.save(content, path)
    return path


def entry_of(rule: Rule) -> dict[str, object]:
    """What FlashRL multiplies a parameter with. A row whose scale is 0 has codes 0."""
    output_N, scale_N = rule.output_factor, rule.scale
    if not rule.quantized:
        output = 1.0 if output_N is None else output_N.unsqueeze(-1)
        return {"input_scale": plain(rule.input_factor), "output_scale": output, "type": torch.bfloat16}
    multiplier_N = torch.where(scale_N == 0, 0.0, (1.0 if output_N is None else output_N) / scale_N)
    return {
        "input_scale": plain(rule.input_factor, row=True),
        "output_scale": multiplier_N.unsqueeze(-1),
        "type": torch.int8,
        "weight_scale": scale_N.clone(),
    }


def plain(factor_K: torch.Tensor | None, row: bool = False) -> torch.Tensor | float:
    """A factor as FlashRL writes it: 1.0 for none, (1, K) for matrices."""
    if factor_K is None:
        return 1.0
    return factor_K.unsqueeze(0).clone() if row else factor_K.clone()
