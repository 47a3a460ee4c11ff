"""Interception of weight loading: every copy into a resident parameter becomes a write of the refit.

Engines have dozens of loaders (fused, sharded, per expert, stacked). All of them end in `parameter_view.copy_(shard)`.
A TorchDispatchMode around `model.load_weights` sees each of these copies, turns it into a write of the refit, and
records which part of which checkpoint tensor was written to which rows. This record is the plan with which later refits
skip the loaders.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from textwrap import shorten
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_quant.engine.misnamed import misnamed
from ascend_quant.engine.smoothing import Smoothing
from ascend_quant.engine.source import Source
from ascend_quant.engine.unmatched import UnmatchedWeights
from ascend_quant.kernels.storage import CODES
from ascend_quant.refit import Refit, RefitError
from ascend_quant.refit.plan import together
from ascend_quant.refit.resident import ResidentWeight
from ascend_quant.schemes.tensors import FLOATS, one_by_one
from ascend_quant.transfer import prequantized
from ascend_quant.transfer.validate import NamedTensor, made_plain

COPY = torch.ops.aten.copy_.default
FILL = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)
REASON = 120  # characters of a loader's own message


class Loading(TorchDispatchMode):
    """The dispatch mode of one `model.load_weights` call, active while the engine's loaders run.

    Args:
        refit: writes and counts the tensors.
        residents: resident parameters by their storage; a scale's maps to None (never loaded).
        shards: number of ranks over which a tensor may be split.
        unmatched: tensors for which a rank may have no parameter.
        stacked: whether the engine's loaders accept stacked experts; otherwise experts are split.
        smoothing: the profile's smoothing, one of the refit's checks; None without a profile.
    """

    def __init__(
        self,
        refit: Refit,
        residents: Mapping[int, ResidentWeight | None],
        shards: int,
        unmatched: UnmatchedWeights,
        stacked: bool,
        smoothing: Smoothing | None = None,
    ):
        super().__init__()
        self.refit, self.residents, self.shards, self.unmatched = refit, residents, shards, unmatched
        self.stacked, self.smoothing = stacked, smoothing
        self.source: Source | None = None

    def feed(self, weights: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
        """Write tensors by plan; pass the others to the engine's loaders, and check that each was written."""
        if self.refit.stages:
            weights = self.refit.take(weights)
        flush = self.refit.batch.flush
        for group in together(weights):
            if self.unmatched.head is not None:
                group = self.unmatched.head.apart(group, flush)
            for name, sent in self.refit.place(group):
                own_name, coded = prequantized.parted(name)
                plain = sent if coded else made_plain(sent)
                tensor = prequantized.codes_of(name, sent) if coded else plain
                slot = self.refit.batch.new_sources([(name, tensor.numel())])
                self.source = Source(name, tensor, slot, sent, coded)
                yield from [(own_name, tensor)] if self.stacked else one_by_one(own_name, tensor)
                self.finish()
                if plain is not sent:
                    flush()  # keeps only one copy at a time
            flush()

    @contextmanager
    def naming(self) -> Generator[None]:
        """Turn an error of the engine's loaders, which often says little, into one that names the tensor."""
        try:
            yield
        except RefitError:
            raise
        except Exception as error:
            if self.source is None:  # raised by the iterator of tensors, not by a loader
                raise
            raise self._refused(self.source, error) from error

    def skip(self) -> None:
        """Record that the engine's loader skips the current tensor by design, so that not writing it is no error."""
        if self.source is not None:
            self.source.skipped = True

    def finish(self) -> None:
        """Finish the current tensor, and check that it was written.

        Raises:
            RefitError: the model ignored it, or took only part of it.
        """
        source, self.source = self.source, None
        if source is None:
            return
        if source.taken == 0:
            source.entry.skipped = source.skipped and self.unmatched.may_be_skipped(source.name)
            if not source.entry.skipped and not self.unmatched.leave_out(source.name):
                raise self._unplaced(source)
            self.refit.record(source.name, source.entry)
            return
        whole, wanted = source.tensor.numel(), source.wanted()
        # If sharded, this rank took whole/shards elements, or a multiple if ranks hold copies (key/value heads).
        misfit = source.taken > whole or source.taken * self.shards % whole
        if not source.padded and (misfit or wanted not in (None, whole)):
            has = f"only {source.taken} of its {whole} elements were loaded"
            raise RefitError(
                f"{source.name}: shape {tuple(source.tensor.shape)} is not what the model expects: "
                + (has if misfit else f"it has {whole} elements, expected {wanted}")
            )
        self.refit.received.count(1, source.nbytes)
        self.refit.record(source.name, source.entry)

    def _refused(self, source: Source, error: Exception) -> RefitError:
        """Return the error for a tensor that the engine's own loader refuses, which may list all known names."""
        came, known = tuple(source.entry.shape), self.refit.plan.entries.get(source.name)
        if known is not None and known.shape != source.entry.shape:
            return RefitError(f"{source.name}: shape {came}, but the engine has it as {tuple(known.shape)}")
        reason = self._misnamed(source.name) or shorten(str(error), REASON) or "its shape or name does not fit"
        return RefitError(f"{source.name} of shape {came}: the engine refused it: {reason}")

    def _misnamed(self, name: str) -> str | None:
        """Return the fix for a name with a known prefix or infix of a wrapper; None for others."""
        entries = self.refit.plan.entries or {one.name for one in self.residents.values() if one is not None}
        return misnamed(prequantized.parted(name)[0], {prequantized.parted(known)[0] for known in entries})

    def _unplaced(self, source: Source) -> RefitError:
        """Return the error for a tensor of which nothing was written."""
        name = source.name
        if any(resident is not None and resident.name == name for resident in self.residents.values()):
            return RefitError(
                f"{name}: the model's loader received this tensor and wrote nothing, although the model has a "
                "parameter of this name: loaders that collect tensors before they write are not supported"
            )
        if source.elsewhere is not None:
            return RefitError(
                f"{name}: the engine's loader wrote this tensor into a buffer ({source.elsewhere}), but a refit "
                "updates only parameters: serve this model with vLLM's own model class, or without ascend_quant"
            )
        return RefitError(f"extra tensor {name}: {self._misnamed(name) or 'this model has no parameter for it'}")

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if (func is COPY or func in FILL) and not self.refit.batch.is_flushing:
            target: torch.Tensor = args[0]
            key = storage_of(target)
            if key in self.residents and target.numel():
                self._write(func, self.residents[key], target, args)
                return target
            if func is COPY and target.dtype in CODES.values() and args[1].dtype in FLOATS:
                raise RefitError(
                    f"{self._name()}: a loader copied floats into a {target.dtype} buffer that ascend_quant does not "
                    "manage; please report this model class"
                )
            if func is COPY and self.source is not None and self.source.holds(args[1]):
                self.source.elsewhere = f"{target.dtype} of shape {tuple(target.shape)}"
        return func(*args, **(kwargs or {}))

    def _write(
        self, func: Callable[..., Any], resident: ResidentWeight | None, target: torch.Tensor, args: Sequence[Any]
    ) -> None:
        if resident is None:
            raise RefitError(f"{self._name()}: the engine computes scales itself; send only BF16 weights")
        source = self.source
        if source is None:
            raise RefitError("a weight loader wrote to an engine parameter before it received a tensor")
        try:
            if func is COPY:
                self._copy(source, resident, target, args[1])
            else:
                resident.fill(target, args[1] if len(args) > 1 else 0, source.slot)
                source.entry.by_loader = True  # fills rows that no tensor contains
        except RefitError as error:
            if str(error).startswith(f"{self._name()}:"):
                raise
            raise RefitError(f"{self._name()} -> {error}") from error

    def _copy(self, source: Source, resident: ResidentWeight, target: torch.Tensor, shard: torch.Tensor) -> None:
        own = source.holds(shard)
        base = source.tensor if own else shard
        resident.check_dtype(source.tensor.dtype, source.coded)  # even if a loader converts it
        if resident.of_tensors and not own:
            raise RefitError(
                f"{source.name}: the engine rearranges this tensor, so a scale for the whole tensor cannot be "
                "computed; use scheme fp8"
            )
        whole = source.whole_rows(shard) if own else None
        exact, given = self._by_profile(source, resident, shard, own)
        writes = self.refit.write(source.slot, resident, target, shard, whole, base, exact, given, source.coded)
        source.taken += shard.numel()
        source.sizes.setdefault(resident.name, {}).update(resident.whole_sizes(target))
        source.padded |= resident.padded
        if own and (source.coded or source.tensor.is_contiguous()):
            for write in writes:
                source.entry.add(resident, write)
        else:
            source.entry.by_loader = True
        if not own:
            self.refit.batch.flush()  # a loader's own tensor only lives until the loader returns

    def _by_profile(
        self, source: Source, resident: ResidentWeight, shard: torch.Tensor, own: bool
    ) -> tuple[bool, torch.Tensor | None]:
        """Return whether the shard is quantized without rounding to BF16, and its rows' frozen scales."""
        smoothing = self.smoothing
        if smoothing is None:
            return False, None
        quantized = bool(resident.codes)
        if source.coded:
            raise RefitError(
                f"{source.name}: the profile has to smooth weights before quantization; send BF16 weights instead "
                "of quantized ones"
            )
        smoothing.note(source.name, quantized)
        scale_N = smoothing.scale_of(source.name) if quantized else None
        if scale_N is not None and not own:
            raise RefitError(
                f"{source.name}: the engine rearranges this tensor, so the profile's frozen scales do not "
                "fit; leave the option frozen_scales out"
            )
        return smoothing.is_exact(source.name), None if scale_N is None else source.of_rows(scale_N, shard)

    def _name(self) -> str:
        return self.source.name if self.source is not None else "a tensor of unknown name"


def storage_of(tensor: torch.Tensor) -> int:
    """Return an id of a tensor's memory that, unlike data_ptr, also distinguishes meta tensors."""
    return tensor.untyped_storage()._cdata


def guard(loader: Callable[..., Any], name: str, loading: Callable[[], bool]) -> Callable[..., Any]:
    """Wrap a parameter's loader: outside `Loading`, where it would silently cast floats to int8, it raises."""

    @wraps(loader)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not loading():
            raise RefitError(f"{name}: its weight loader was called directly; load weights through model.load_weights")
        return loader(*args, **kwargs)

    return guarded
