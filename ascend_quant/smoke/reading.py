"""Results of the smoke test's JSON files for NPUs, one row per probe."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend_quant.files.documents import BadDocument, read_json
from ascend_quant.smoke.probes import probes_for
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, SCHEMA, Result, in_short
from ascend_quant.smoke.training import NAN, TRAIN

NOT_RUN = "not run"
ORDER = (FAILED, OK, NOT_APPLICABLE)  # if files disagree, the first of these is used
FASTER = {"speed.int8": ("speed.bf16", "speed.w8a8"), "speed.int8_4": ("speed.bf16_4",)}
RATES, BYTES = "tokens/s by batch", "bytes of weights"


@dataclass(frozen=True)
class Read:
    """The contents of one file: the machine, and the results by name."""

    about: str
    results: dict[str, Result]


def read(file: Path) -> Read:
    """Read a file of the smoke test on an NPU.

    Raises:
        BadDocument: the file cannot be read, or is not one of those.
    """
    content = read_json(file)
    try:
        schema, device = content["schema"], content["device"]
        if schema != SCHEMA:
            raise BadDocument(f"{file}: has schema {schema}, but this version reads {SCHEMA}: run smoke again")
        if device != "npu":
            raise BadDocument(f"{file}: was written on {device}; docs/ascend.md is about NPUs")
        results = {one["name"]: Result(**one) for one in content["probes"]}
        versions = results["versions"].values if "versions" in results else {}
        about = [f"{versions.get('devices', '?')} x {versions.get('device', 'NPU')}", content["stack"]]
        about += [f"{name} {versions[name]}" for name in ("vllm-ascend", "torch-npu", "CANN") if name in versions]
        about += [f"ascend-quant {content['version']}", content["started"][:10]]
    except (KeyError, TypeError) as why:
        raise BadDocument(f"{file}: is not JSON of this command: {type(why).__name__}: {why}") from why
    return Read(", ".join(about), results)


def rows(files: Sequence[Read]) -> list[tuple[str, str, str]]:
    """Return each NPU probe with its status and observations: the reason for a failure, numbers, ratios."""
    found: dict[str, Result] = {}
    for one in (result for file in files for result in file.results.values()):
        if one.name not in found or ORDER.index(one.status) < ORDER.index(found[one.name].status):
            found[one.name] = one
    names = [TRAIN, NAN, *(one.name for one in probes_for("npu"))]
    return [_row(name, found) for name in names]


def _row(name: str, found: dict[str, Result]) -> tuple[str, str, str]:
    if name not in found:
        return name, NOT_RUN, ""
    one = found[name]
    seen = one.reason or in_short(one.values)
    for other in FASTER.get(name, ()):
        if RATES in one.values and RATES in (beside := getattr(found.get(other), "values", {})):
            pairs = ((batch, rate, beside[RATES].get(batch)) for batch, rate in one.values[RATES].items())
            seen += f"; tokens/s, times {other}: "
            seen += ", ".join(f"{rate / than:.2f} at {batch}" for batch, rate, than in pairs if than)
            seen += f"; bytes {one.values[BYTES] / beside[BYTES]:.2f}"
    return name, one.status, seen
