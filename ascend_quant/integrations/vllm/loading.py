"""The one hook: while weights load, every copy into a resident parameter passes through here.

vLLM has dozens of loaders (fused, sharded, per expert, stacked). All of them end in `parameter_view.copy_(shard)`.
A dispatch mode around `model.load_weights` sees each of these copies, quantizes where the destination holds codes,
and keeps the books: which checkpoint tensor went where, how much of it, and which rows are written.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_quant.refit import Refit
from ascend_quant.resident import RefitError, ResidentWeight

COPY = torch.ops.aten.copy_.default
FILL = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)


class Loading(TorchDispatchMode):
    """Active during one `model.load_weights` call.

    Args:
        refit: where tensors are counted.
        residents: resident parameters by storage address; a scale's storage maps to None (never loaded).
        shards: over how many ranks a tensor may be split.
        skipped: tells whether vLLM leaves a checkpoint name out on purpose.
    """

    def __init__(self, refit: Refit, residents: dict[int, ResidentWeight | None], shards: int, skipped):
        super().__init__()
        self.refit, self.residents, self.shards, self.skipped = refit, residents, shards, skipped
        self.source: Source | None = None

    def feed(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Pass tensors on to vLLM's loader, one at a time, and check what became of each."""
        for name, tensor in weights:
            self.source = Source(name, tensor)
            yield name, tensor
            self.finish()

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Turn an error of vLLM's loaders, which often says little, into one that names the tensor."""
        try:
            yield
        except RefitError:
            raise
        except Exception as error:
            if self.source is None:  # not in a loader: whoever provides the tensors failed
                raise
            shape = tuple(self.source.tensor.shape)
            reason = str(error) or "its shape or name does not fit"
            raise RefitError(f"{self._name()} of shape {shape}: vLLM refused it: {reason}") from error

    def finish(self) -> None:
        """Close the books of the current tensor.

        Raises:
            RefitError: the model ignored it, or took only part of it.
        """
        source, self.source = self.source, None
        if source is None:
            return
        if source.taken == 0:
            if not self.skipped(source.name):
                raise RefitError(f"extra tensor {source.name}: this model has no place for it")
            return
        whole = source.tensor.numel()
        # Sharded: this rank took whole/shards of it, or a multiple where ranks hold copies (key/value heads).
        if not source.padded and (source.taken > whole or source.taken * self.shards % whole):
            raise RefitError(
                f"{source.name}: shape {tuple(source.tensor.shape)} is not what the model expects: "
                f"{source.taken} of its {whole} elements found a place"
            )
        self.refit.count(1, source.tensor.nbytes)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is COPY or func in FILL:
            target = args[0]
            key = target.untyped_storage().data_ptr()
            if key in self.residents and target.numel():
                self._write(func, self.residents[key], target, args)
                return target
            if func is COPY and target.dtype == torch.int8 and args[1].is_floating_point():
                raise RefitError(
                    f"{self._name()}: a float tensor is being cast into an int8 buffer that is not resident"
                )
        return func(*args, **(kwargs or {}))

    def _write(self, func, resident: ResidentWeight | None, target: torch.Tensor, args) -> None:
        if resident is None:
            raise RefitError(f"{self._name()}: scales are computed by the engine; send BF16 weights alone")
        try:
            if func is COPY:
                shard = args[1]
                whole = None if self.source is None else self.source.whole_rows(shard)
                resident.write(target, shard, whole, self.source and self.source.key)
                if self.source is not None:
                    self.source.taken += shard.numel()
                    self.source.padded |= resident.padded
            else:
                resident.fill(target, args[1] if len(args) > 1 else 0, self.source and self.source.key)
        except RefitError as error:
            if str(error).startswith(f"{self._name()}:"):
                raise
            raise RefitError(f"{self._name()} -> {error}") from error

    def _name(self) -> str:
        return self.source.name if self.source is not None else "a tensor of unknown name"


def guard(loader: Callable, name: str, loading: Callable[[], bool]) -> Callable:
    """A parameter's own loader that refuses to run outside `Loading`: it would cast floats to int8, silently."""

    @wraps(loader)
    def guarded(*args, **kwargs):
        if not loading():
            raise RefitError(f"{name}: its loader was called directly; write weights through model.load_weights")
        return loader(*args, **kwargs)

    return guarded


class Source:
    """One tensor of the checkpoint or the trainer, and how much of it has found a place."""

    def __init__(self, name: str, tensor: torch.Tensor):
        self.name, self.tensor, self.taken, self.padded = name, tensor, 0, False
        self.key = object()  # outlives the tensor, whose memory the sender reclaims

    def whole_rows(self, shard: torch.Tensor) -> torch.Tensor | None:
        """The complete rows of this tensor that `shard`, a view of it, is a slice of; None if it is no such view."""
        tensor = self.tensor
        if shard.dim() == 0 or shard.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
            return None
        along = [d for d in range(tensor.dim()) if tensor.stride(d) == shard.stride(-1) and tensor.shape[d] > 1]
        if not along:
            return None
        length, stride = tensor.shape[along[-1]], tensor.stride(along[-1])
        behind = (shard.storage_offset() - tensor.storage_offset()) // stride % length
        shape, strides = (*shard.shape[:-1], length), shard.stride()
        return shard.as_strided(shape, strides, shard.storage_offset() - behind * stride)
