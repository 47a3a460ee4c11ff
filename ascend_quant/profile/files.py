"""Profile files: our format (tensors in safetensors, the rest in JSON), and FlashRL's profile.pt.

FlashRL's for int8 is a dict, name -> {input_scale, output_scale, type}. It computes

    codes = round(w_NK * output_scale_N1 * input_scale_1K), clamped to [-128, 127]

so output_scale is output_factor / scale. Only `up_proj` has an output factor there, and `down_proj` its inverse as
input_scale. Files written here also have `weight_scale`, which FlashRL ignores. Its file for fp8 is a list of names.
(flash_rl/flash_quantization.py of flash-llm-rl 1.0.3.)
"""

import io
import json
import pickle
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from ascend_quant.files.documents import BadDocument, read_json
from ascend_quant.files.whole_file import write_whole
from ascend_quant.profile import equivalence
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.profile.rules import ARITHMETICS, PARTS, Profile, Rule

KEYS = {"input_scale", "output_scale", "type"}
CLOSE = 1e-6  # float32 tolerance: without an output factor, output_scale * weight_scale is 1


def files_of(path: Path) -> tuple[Path, Path]:
    """Return the two files of a profile, given the name of either or the name without a suffix."""
    stem = path.with_suffix("") if path.suffix in (".safetensors", ".json") else path
    return stem.with_name(stem.name + ".safetensors"), stem.with_name(stem.name + ".json")


class _Content(BaseModel):
    """The content of our JSON file."""

    model_config = ConfigDict(strict=True)

    format: Literal[1] = 1
    scheme: str
    arithmetic: Literal[ARITHMETICS]
    notes: dict[str, Any]
    quantized: dict[str, bool]


def save(profile: Profile, path: Path) -> list[Path]:
    """Write a profile's files atomically; return their paths: FlashRL's format if the path ends in .pt.

    Shared factors are written for each parameter.

    Raises:
        OSError: a file cannot be written.
    """
    from safetensors.torch import save as as_safetensors

    if path.suffix == ".pt":
        _write_flashrl(profile, path)
        return [path]
    tensors, text = files_of(path)
    held = {f"{name}.{part}": t for name, rule in profile.rules.items() for part, t in rule.tensors().items()}
    write_whole(tensors, as_safetensors({name: t.float().clone().contiguous() for name, t in held.items()}))
    quantized = {name: rule.quantized for name, rule in profile.rules.items()}
    content = _Content(
        scheme=profile.scheme, arithmetic=profile.arithmetic, notes=dict(profile.notes), quantized=quantized
    )
    write_whole(text, json.dumps(content.model_dump(), indent=1) + "\n")
    return [tensors, text]


def load(path: Path) -> Profile:
    """Load a profile: ours, or one of FlashRL's if the path ends in .pt.

    Raises:
        BadCheckpoint: a file is missing, is not of this format, or changes the model's function, see `equivalence`.
    """
    profile = (_read_flashrl if Path(path).suffix == ".pt" else _read)(Path(path))
    equivalence.check(profile.rules)
    return profile


def _read(path: Path) -> Profile:
    """Read a profile in our own format."""
    from safetensors import SafetensorError, safe_open

    tensors, text = files_of(path)
    for file in (tensors, text):
        if not file.is_file():
            raise BadCheckpoint(f"no profile at {file}; `ascend-quant profile` writes it")
    try:
        content = _Content.model_validate(read_json(text))
        with safe_open(tensors, framework="pt") as file:
            held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except (BadDocument, ValidationError, SafetensorError) as error:
        raise BadCheckpoint(f"no profile at {text}: {line(error)}; create it again") from error
    rules = {
        name: Rule(quantized, **{part: held.pop(key) for part in PARTS if (key := f"{name}.{part}") in held})
        for name, quantized in content.quantized.items()
    }
    if held:
        raise BadCheckpoint(
            f"{tensors} holds {next(iter(held))!r}, which {text} does not list; create the profile again"
        )
    return Profile(content.scheme, rules, content.notes, content.arithmetic)


def _read_flashrl(path: Path) -> Profile:
    """Read a profile that FlashRL or `save` wrote.

    Raises:
        BadCheckpoint: there is no such file, it contains code, or its content is invalid. This does not check whether
            factors cancel (see `equivalence`): for MoE models FlashRL only writes smoothed norms.
    """
    if not path.is_file():
        raise BadCheckpoint(f"no profile at {path}; `ascend-quant profile` writes it")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadCheckpoint(
            f"{path} contains code, or is not a tensor file; it was not loaded: {line(error)}"
        ) from error
    except Exception as error:  # torch raises various exceptions for a broken file
        raise BadCheckpoint(f"{path} is not a file that torch.save wrote: {line(error)}") from error
    notes = {"flashrl": path.name}
    if not isinstance(content, (dict, list)):
        raise BadCheckpoint(
            f"{path} contains the type {type(content).__name__}; a FlashRL profile is a dict or a list of names"
        )
    if strange := [name for name in content if not isinstance(name, str)]:
        raise BadCheckpoint(f"{path}: {shown(strange[0])} is not a parameter name")
    if isinstance(content, list):
        return Profile("fp8", {name: Rule(True) for name in content}, notes)
    rules = {name: rule_of(content, name) for name in content}
    for name, rule in rules.items():
        for part, tensor in rule.tensors().items():
            if not bool(tensor.isfinite().all()) or (part == "scale" and bool((tensor < 0).any())):
                raise BadCheckpoint(f"{name:.200}: its values give a {part} that is negative or infinite")
    return Profile("int8", rules, notes)


def entry_at(content: Mapping[str, object], name: str) -> Mapping:
    """Return the entry of one parameter in a FlashRL int8 profile.

    Raises:
        BadCheckpoint: the entry is invalid.
    """
    entry = content[name]
    if not isinstance(entry, Mapping) or not set(entry) >= KEYS or not isinstance(entry["type"], torch.dtype):
        keys = ", ".join(sorted(KEYS))
        raise BadCheckpoint(f"{name:.200}: expected {keys} in a FlashRL int8 profile, not {shown(entry)}")
    return entry


def rule_of(content: Mapping[str, object], name: str) -> Rule:
    """Return the rule of one entry."""
    entry = entry_at(content, name)
    input_factor, multiplier_N = vector(entry, "input_scale", name), vector(entry, "output_scale", name)
    if entry["type"] != torch.int8:
        return Rule(False, input_factor, multiplier_N)
    if multiplier_N is None:
        raise BadCheckpoint(f"{name:.200}: output_scale of an int8 weight must be 1 / weight_scale of each row, not 1")
    if "weight_scale" in entry:
        scale_N = as_long(vector(entry, "weight_scale", name), multiplier_N, name, "weight_scale")
        if scale_N is None:
            raise BadCheckpoint(f"{name:.200}: weight_scale must have one number per row, not 1")
        output_N = torch.where(scale_N == 0, 1.0, multiplier_N * scale_N)
    else:
        output_N = as_long(up_factor(content, name), multiplier_N, name, "its down_proj's input_scale")
        scale_N = torch.where(multiplier_N == 0, 0.0, (1.0 if output_N is None else output_N) / multiplier_N)
    if output_N is not None and bool(((output_N - 1).abs() <= CLOSE).all()):
        output_N = None
    return Rule(True, input_factor, output_N, scale_N)


def as_long(found_N: torch.Tensor | None, multiplier_N: torch.Tensor, name: str, what: str) -> torch.Tensor | None:
    """Return the tensor (N), or None; raise BadCheckpoint if its length differs from that of output_scale (N)."""
    if found_N is not None and found_N.shape != multiplier_N.shape:
        rows = f"{len(found_N)} elements, but output_scale has {len(multiplier_N)} rows"
        raise BadCheckpoint(f"{name:.200}: {what} has {rows}")
    return found_N


def up_factor(content: Mapping[str, object], name: str) -> torch.Tensor | None:
    """Return the output factor (N) of an up_proj, from its down_proj; None for other layers."""
    consumer = name.replace(".up_proj.", ".down_proj.")
    if consumer == name or consumer not in content:
        return None
    factor_N = vector(entry_at(content, consumer), "input_scale", consumer)
    return None if factor_N is None else 1 / factor_N


def vector(entry: Mapping, key: str, name: str) -> torch.Tensor | None:
    """Return a factor of an entry, flat and float32; None for 1."""
    value = entry[key]
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        found = value.detach().float().flatten()
        if found.numel() == 1 and found.item() == 1:
            return None
        if found.numel() > 1 and bool(found.isfinite().all()):
            return found
    elif isinstance(value, (int, float)) and value == 1:
        return None
    raise BadCheckpoint(f"{name:.200}: {key} is {shown(value)}; it must be 1, or a tensor of finite numbers")


def shown(value: object) -> str:
    """Return a short description of a value of any size."""
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else line(reprlib.repr(value))


def line(said: object) -> str:
    """Return the text as one line of at most 300 characters."""
    return f"{' '.join(str(said).split()):.300}"


def _write_flashrl(profile: Profile, path: Path) -> None:
    """Write a profile in FlashRL's format."""
    buffer = io.BytesIO()
    torch.save({name: entry_of(rule) for name, rule in profile.rules.items()}, buffer)
    write_whole(path, buffer.getvalue())


def entry_of(rule: Rule) -> dict[str, object]:
    """Return a parameter's multipliers in FlashRL's format: 1.0 for no factor, (1, K) for matrices.

    A row whose scale is 0 has only zero codes.
    """
    output_N, scale_N = rule.output_factor, rule.scale
    if not rule.quantized:
        output = 1.0 if output_N is None else output_N.unsqueeze(-1)
        factor = 1.0 if rule.input_factor is None else rule.input_factor.clone()
        return {"input_scale": factor, "output_scale": output, "type": torch.bfloat16}
    multiplier_N = torch.where(scale_N == 0, 0.0, (1.0 if output_N is None else output_N) / scale_N)
    return {
        "input_scale": 1.0 if rule.input_factor is None else rule.input_factor.unsqueeze(0).clone(),
        "output_scale": multiplier_N.unsqueeze(-1),
        "type": torch.int8,
        "weight_scale": scale_N.clone(),
    }
