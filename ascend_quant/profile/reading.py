"""Read a profile: our own two files (`Profile.save` writes them), or one of FlashRL's; checked before it is used."""

from collections.abc import Mapping
from pathlib import Path

from ascend_quant.documents import BadDocument, read_json
from ascend_quant.profile import equivalence, flashrl_file
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.profile.rules import ARITHMETICS, FORMAT, PARTS, Profile, Rule, files_of


def load(path: Path) -> Profile:
    """A profile: ours, or one of FlashRL's if the path ends in .pt.

    Raises:
        BadCheckpoint: a file is missing, is not of this format, or changes the model's function, see `equivalence`.
    """
    profile = (flashrl_file.read if Path(path).suffix == ".pt" else _read)(Path(path))
    equivalence.check(profile.rules)
    return profile


def _read(path: Path) -> Profile:
    """One of ours."""
    from safetensors import SafetensorError, safe_open

    tensors, text = files_of(path)
    for file in (tensors, text):
        if not file.is_file():
            raise BadCheckpoint(f"no profile at {file}; `ascend-quant profile` writes it")
    try:
        content = read_json(text)
        with safe_open(tensors, framework="pt") as file:
            held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except (BadDocument, SafetensorError) as error:
        raise BadCheckpoint(f"no profile at {path}: {error}") from error
    if content.get("format") != FORMAT:
        raise BadCheckpoint(f"{text}: profile format {content.get('format')!r}, this version reads {FORMAT}")
    _check_content(content, text)
    rules = {
        name: Rule(quantized, **{part: held.pop(key) for part in PARTS if (key := f"{name}.{part}") in held})
        for name, quantized in content["quantized"].items()
    }
    if held:
        raise BadCheckpoint(
            f"{tensors} holds {next(iter(held))[:200]!r}, of which {text} says nothing; make the profile again"
        )
    return Profile(content["scheme"], rules, content["notes"], content["arithmetic"])


def _check_content(content: Mapping[str, object], text: Path) -> None:
    """Raise BadCheckpoint unless the JSON says what `Profile.save` writes."""
    for key, kind in (("scheme", str), ("arithmetic", str), ("notes", dict), ("quantized", dict)):
        if not isinstance(content.get(key), kind):
            raise BadCheckpoint(f"{text}: {key} is {str(content.get(key))[:80]!r}; make the profile again")
    if content["arithmetic"] not in ARITHMETICS:
        names = ", ".join(ARITHMETICS)
        raise BadCheckpoint(f"{text}: arithmetic {content['arithmetic'][:80]!r}; this version knows {names}")
    for name, quantized in content["quantized"].items():
        if not isinstance(quantized, bool):
            raise BadCheckpoint(
                f"{text}: quantized says {str(quantized)[:80]!r} of {name[:200]!r}; true or false is needed"
            )
