"""A conversion from beginning to end: read, plan, check, write the shards, then everything else, then publish OUT."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import ascend_quant
from ascend_quant.convert import output
from ascend_quant.convert.errors import ConvertError
from ascend_quant.convert.formats import PLAIN, format_of
from ascend_quant.convert.layers import Ignored
from ascend_quant.convert.output import Output
from ascend_quant.convert.plan import Plan, plan_quantizing, plan_undoing
from ascend_quant.convert.quantized import Quantized
from ascend_quant.convert.quantizer import check_device, open_device
from ascend_quant.convert.shard_file import Layout
from ascend_quant.convert.source import open_source, other_files, quantization
from ascend_quant.convert.surroundings import WRITTEN_ANEW, add_surroundings
from ascend_quant.convert.workers import Shard, Work, bytes_of, convert_all, default_workers, one_thread, stored_bytes
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.schemes import Scheme, get_scheme

SPARE = 1 << 20  # bytes, for the index, the manifest and so on


@dataclass(frozen=True)
class Request:
    """What a user asks for.

    Attributes:
        scheme: a name of `ascend_quant.schemes`; bf16 undoes the quantization of IN.
        format: one of `formats.FORMATS`; None for the first that holds the scheme.
        ignore: layers that are not quantized, beside those that never are, see `layers.Ignored`.
        workers: files at a time; None for one a core.
    """

    source: Path
    out: Path
    scheme: str
    format: str | None = None
    ignore: tuple[str, ...] = ()
    workers: int | None = None
    device: str = "cpu"

    def chosen(self, experts: bool = False) -> tuple[Scheme, str]:
        """The scheme and the format, of a model with or without experts.

        Raises:
            UnknownScheme: naming the known ones.
            ConvertError: a format that does not go with the scheme.
        """
        scheme = get_scheme(self.scheme)
        return scheme, format_of(scheme, self.format, experts) if scheme.quantized else PLAIN


@dataclass(frozen=True)
class Summary:
    """What was done.

    Attributes:
        shards, resumed: files of weights; those that an earlier run had finished.
        bytes_in, bytes_out: of IN's tensors, and of OUT's files of weights.
        weights: how many were converted, and how many were not, by the reason.
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
    """Convert a checkpoint; OUT appears when all of it is written, see `output`.

    Args:
        progress: is told the bytes of IN that are done and all there are, one thread at a time.

    Raises:
        UnknownScheme, ConvertError, ProfileError: one line that says what is wrong; OUT does not appear.
        OSError: of the system, but for a full disk, which is a ConvertError.
    """
    try:
        with one_thread():
            return _convert(request, progress)
    except OSError as error:
        raise output.full_disk(error, request.out) or error from error


def _convert(request: Request, progress: Progress) -> Summary:
    request.chosen()
    out, checkpoint = Output(request.out), open_source(request.source)
    scheme, format = request.chosen(experts=any(".experts." in name for name in checkpoint.names))
    asked = _identity(request, checkpoint, scheme, format)
    whole = out.was_renamed(asked)
    if not whole:
        out.check(request.source)
    work = _work(request, checkpoint, out, scheme)
    plan = _plan(request, work, format)
    workers = max(1, min(request.workers or default_workers(work.device), len(plan.shards)))
    if whole:
        out.clean()
    written = 0 if whole else _carry_out(work, plan, asked, workers, progress)
    return Summary(
        out=str(request.out),
        scheme=scheme.name,
        format=format,
        shards=len(plan.shards),
        resumed=len(plan.shards) - written,
        workers=workers,
        bytes_in=sum(stored_bytes(checkpoint, name) for name in checkpoint.names),
        bytes_out=sum(Layout(plan.outputs(shard)).bytes for shard in plan.shards),
        weights=dict(plan.kinds),
    )


def _identity(request: Request, checkpoint: Checkpoint, scheme: Scheme, format: str) -> dict:
    """What makes two commands the same, as JSON has it."""
    files = {path.name: path.stat() for path in checkpoint.files}
    return {
        "version": ascend_quant.__version__,
        "scheme": scheme.name,
        "format": format,
        "ignore": list(request.ignore),
        "source": {name: {"bytes": stat.st_size} for name, stat in files.items()},
        output.MODIFIED: {name: stat.st_mtime_ns for name, stat in files.items()},
    }


def _work(request: Request, checkpoint: Checkpoint, out: Output, scheme: Scheme) -> Work:
    """IN, OUT and the device, once it is known that they can be used."""
    device = open_device(request.device)
    if not scheme.quantized:
        return Work(checkpoint, out, device, quantized=Quantized(checkpoint))
    if (found := quantization(checkpoint)) is not None:
        undo = f"undo that first: ascend-quant convert {request.source} BF16_FOLDER --scheme bf16"
        raise ConvertError(f"{request.source} is already quantized ({found}); {undo}")
    check_device(device, scheme)
    return Work(checkpoint, out, device, scheme=scheme)


def _plan(request: Request, work: Work, format: str) -> Plan:
    if work.quantized is not None:
        return plan_undoing(work.checkpoint, work.quantized)
    return plan_quantizing(work.checkpoint, work.scheme, format, Ignored(request.ignore))


def _carry_out(work: Work, plan: Plan, asked: dict, workers: int, progress: Progress) -> int:
    """Write what is missing of OUT, and publish it; how many shards that were."""
    out, folder = work.output, work.checkpoint.folder
    files = [*plan.shards, *map(str, other_files(folder)), *WRITTEN_ANEW]
    with out.open(asked, frozenset(files)):
        digests = {name: one for name in plan.shards if (one := out.finished(name, plan.outputs(name))) is not None}
        shards = [_shard(work.checkpoint, plan, name) for name in plan.shards if name not in digests]
        others = sum((folder / path).stat().st_size for path in other_files(folder))
        missing = sum(Layout(plan.outputs(shard.name)).bytes for shard in shards)
        output.check_room(out.partial, missing + others + SPARE)
        shards.sort(key=lambda shard: -shard.bytes)  # the largest first: no worker is left alone with it
        digests |= convert_all(work, shards, workers, _reporter(shards, progress))
        add_surroundings(asked, work, plan, digests)
        out.publish()
    return len(shards)


def _shard(checkpoint: Checkpoint, plan: Plan, name: str) -> Shard:
    return Shard(name, plan.shards[name], sum(bytes_of(checkpoint, piece) for piece in plan.shards[name]))


def _reporter(shards: Sequence[Shard], progress: Progress) -> Callable[[int], None]:
    """What threads tell their bytes to."""
    total, done, lock = sum(shard.bytes for shard in shards), 0, Lock()
    progress(0, total)

    def report(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress(done, total)

    return report
