"""A whole conversion, such as BF16 to compressed-tensors: read, plan, check, write, then rename to OUT."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import ascend_quant
from ascend_quant.convert.formats import PLAIN, Spec, description, format_of, section
from ascend_quant.convert.model import INDEX
from ascend_quant.convert.output import MODIFIED, Output, as_json, check_room
from ascend_quant.convert.plan import Plan, plan_quantizing, plan_undoing
from ascend_quant.convert.quantized import Quantized
from ascend_quant.convert.quantizer import Quantizer
from ascend_quant.convert.shard_file import Layout, size
from ascend_quant.convert.source import MANIFEST, in_bf16, open_source, other_files, plain_config, quantization
from ascend_quant.convert.workers import default_workers, one_thread, write_shards
from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.schemes import Scheme, get_scheme
from ascend_quant.schemes.layer_names import Ignored

SINGLE = "model.safetensors"  # written without an index
DESCRIPTION = "quant_model_description.json"
WRITTEN_ANEW = (INDEX, DESCRIPTION, "config.json", MANIFEST)


@dataclass(frozen=True)
class Request:
    """The conversion that a user requests.

    Attributes:
        scheme: a name of `ascend_quant.schemes`; bf16 undoes the quantization of IN.
        format: one of `FORMATS`; None for the first that supports the scheme.
        ignore: additional layers that are not quantized, see `names.Ignored`.
        workers: number of files converted at a time; None for one per core.
    """

    source: Path
    out: Path
    scheme: str
    format: str | None = None
    ignore: tuple[str, ...] = ()
    workers: int | None = None

    def chosen(self, experts: bool = False) -> tuple[Scheme, str]:
        """Return the scheme and the format for a model with or without experts.

        Raises:
            UnknownScheme: there is no such scheme; the message names the known ones.
            BadCheckpoint: the format does not support the scheme.
        """
        scheme = get_scheme(self.scheme)
        return scheme, format_of(scheme, self.format, experts) if scheme.quantized else PLAIN


@dataclass(frozen=True)
class Summary:
    """The summary of a conversion.

    Attributes:
        shards, resumed: number of weight files, and of those that an earlier run had finished.
        bytes_in, bytes_out: size of IN's tensors, and of OUT's weight files.
        weights: number of converted weights, and of unconverted ones by reason.
    """

    out: str
    scheme: str
    format: str
    shards: int
    resumed: int
    workers: int
    bytes_in: int
    bytes_out: int
    weights: Mapping[str, int] = field(default_factory=dict)


Progress = Callable[[int, int], None]


def convert(request: Request, progress: Progress = lambda done, total: None) -> Summary:
    """Convert a checkpoint; OUT appears once it is complete, see `output`.

    Args:
        progress: called with the finished and total bytes of OUT, from one thread at a time.

    Raises:
        UnknownScheme, BadCheckpoint: the conversion is not possible, see the message; OUT is not created.
        OSError: a system error, such as a full disk.
    """
    request.chosen()
    out, checkpoint = Output(request.out), open_source(request.source)
    out.check(request.source)
    scheme, format = request.chosen(experts=any(".experts." in name for name in checkpoint.names))
    with one_thread():
        plan, quantizer = _planned(request, checkpoint, scheme, format)
        workers = max(1, min(request.workers or default_workers(), len(plan.shards)))
        others, asked = list(other_files(request.source)), _identity(request, checkpoint, scheme, format)
        with out.open(asked, {*plan.shards, *map(str, others), *WRITTEN_ANEW}):
            before = {name for name in plan.shards if out.has_finished(name, plan.outputs(name))}
            sizes = {name: Layout(plan.outputs(name)).bytes for name in plan.shards}
            shards = sorted(sizes.keys() - before, key=lambda name: (-sizes[name], name))  # large files first
            carried = sum((request.source / path).stat().st_size for path in others)
            check_room(out.partial, sum(sizes[name] for name in shards) + carried)
            report = _reporter(plan, shards, progress)
            write_shards(checkpoint, plan, shards, out, workers, quantizer, report)
            for path in others:
                out.add(str(path), request.source / path)
            for name, content in _written_anew(request, checkpoint, plan, scheme, format).items():
                out.add(name, as_json(content))
            out.add(MANIFEST, as_json({key: value for key, value in asked.items() if key != MODIFIED}))
    return Summary(
        out=str(request.out),
        scheme=scheme.name,
        format=format,
        shards=len(plan.shards),
        resumed=len(before),
        workers=workers,
        bytes_in=sum(size(Spec(checkpoint.dtype(name), checkpoint.shape(name))) for name in checkpoint.names),
        bytes_out=sum(sizes.values()),
        weights=dict(plan.kinds),
    )


def _planned(
    request: Request, checkpoint: Checkpoint, scheme: Scheme, format: str
) -> tuple[Plan, Callable[[], Quantizer | None]]:
    """Return the plan for IN and the factory of each thread's quantizer."""
    if not scheme.quantized:
        return plan_undoing(checkpoint, Quantized(checkpoint)), lambda: None
    if Quantized(checkpoint).readers:  # raises its own error if they cannot be dequantized
        undo = f"undo that first: ascend-quant convert {request.source} BF16_FOLDER --scheme bf16"
        raise BadCheckpoint(f"{request.source} is already quantized ({quantization(checkpoint)}); {undo}")
    plan = plan_quantizing(checkpoint, scheme, format, Ignored(request.ignore))
    return plan, lambda: Quantizer(scheme)


def _identity(request: Request, checkpoint: Checkpoint, scheme: Scheme, format: str) -> dict:
    """Return a conversion's key in JSON types; two commands that do the same have equal keys."""
    files = {path.name: path.stat() for path in checkpoint.files}
    return {
        "version": ascend_quant.__version__,
        "scheme": scheme.name,
        "format": format,
        "ignore": list(request.ignore),
        "source": {name: {"bytes": stat.st_size} for name, stat in files.items()},
        MODIFIED: {name: stat.st_mtime_ns for name, stat in files.items()},
    }


def _reporter(plan: Plan, shards: Sequence[str], progress: Progress) -> Callable[[int], None]:
    """Return the function to which threads report their written bytes."""
    total = sum(size(spec) for shard in shards for spec in plan.outputs(shard).values())
    done, lock = 0, Lock()
    progress(0, total)

    def report(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress(done, total)

    return report


def _written_anew(request: Request, checkpoint: Checkpoint, plan: Plan, scheme: Scheme, format: str) -> dict[str, dict]:
    """Return the new contents of the index, of ModelSlim's description and of config.json."""
    files, outputs = {}, {shard: plan.outputs(shard) for shard in plan.shards}
    specs = {name: spec for shard in outputs.values() for name, spec in shard.items()}
    if list(outputs) != [SINGLE]:
        places = {name: shard for shard, names in outputs.items() for name in names}
        files[INDEX] = {"metadata": {"total_size": sum(map(size, specs.values()))}, "weight_map": places}
    config = plain_config(checkpoint.config)
    if scheme.quantized:
        said = section(format, scheme, request.ignore, plan.left)
        config |= {} if said is None else {"quantization_config": said}
        if said is None:
            files[DESCRIPTION] = description(plan.quantized(), list(specs))
    return files | {"config.json": config if scheme.quantized else in_bf16(config)}
