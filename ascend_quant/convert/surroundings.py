"""What lies around the weights: files that are carried over, the index, config.json, a description, the manifest."""

import json
from collections.abc import Mapping

from ascend_quant.convert.formats import description, section
from ascend_quant.convert.output import MODIFIED
from ascend_quant.convert.plan import Plan
from ascend_quant.convert.shard_file import Digest, size
from ascend_quant.convert.source import MANIFEST, other_files, plain_config
from ascend_quant.convert.workers import Work

SINGLE = "model.safetensors"  # which needs no index
INDEX = "model.safetensors.index.json"
DESCRIPTION = "quant_model_description.json"
WRITTEN_ANEW = (INDEX, DESCRIPTION, "config.json", MANIFEST)


def add_surroundings(asked: dict, work: Work, plan: Plan, shards: Mapping[str, Digest]) -> None:
    """Write all files but the shards; the manifest, with everyone's digest, is the last.

    Args:
        asked: what was converted, and how.
        shards: digests of the files of weights.
    """
    out, folder, added = work.output, work.checkpoint.folder, dict(shards)
    for path in other_files(folder):
        added[str(path)] = out.add(str(path), folder / path)
    for name, content in _written_anew(asked, work, plan).items():
        added[name] = out.add(name, _text(content))
    kept = {key: value for key, value in asked.items() if key != MODIFIED}
    out.add(MANIFEST, _text(kept | {"files": {name: added[name]._asdict() for name in sorted(added)}}))


def _written_anew(asked: dict, work: Work, plan: Plan) -> dict[str, dict]:
    """The contents of JSON files, config.json last."""
    files, outputs = {}, {shard: plan.outputs(shard) for shard in plan.shards}
    specs = {name: spec for shard in outputs.values() for name, spec in shard.items()}
    if list(outputs) != [SINGLE]:
        places = {name: shard for shard, names in outputs.items() for name in names}
        files[INDEX] = {"metadata": {"total_size": sum(map(size, specs.values()))}, "weight_map": places}
    config = plain_config(work.checkpoint.config)
    if work.scheme is not None:
        said = section(asked["format"], work.scheme, asked["ignore"], plan.left)
        config |= {} if said is None else {"quantization_config": said}
        if said is None:
            files[DESCRIPTION] = description(plan.quantized(), list(specs))
    return files | {"config.json": config}


def _text(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
