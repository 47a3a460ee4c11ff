"""SmoothQuant: each tensor of a refit is multiplied by the smoothing factors of a profile before it is quantized.

    trainer's w  --through-->  float32 x, quantized without rounding to BF16, or BF16 x (norms, biases, routers)

Tensors are smoothed one at a time, by `oracle.smoothed`, so a refit needs memory for one more tensor. A tensor without
a rule is unchanged. It is refused if its layer reads the output of a smoothed norm, such as an expert or a router that
the profile lacks.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch

from ascend_quant import oracle
from ascend_quant.kernels.writes import RowWrite
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.profile.equivalence import reaches
from ascend_quant.profile.rules import Profile, Rule
from ascend_quant.refit import Check, Received, RefitError
from ascend_quant.refit.plan import Entry
from ascend_quant.refit.resident import ResidentWeight
from ascend_quant.schemes.tensors import FLOATS, one_by_one
from ascend_quant.transfer.validate import NamedTensor

logger = logging.getLogger(__name__)

SHOWN = 8  # names that one message lists
LARGEST = 2.0**32  # largest factor, and 1 / LARGEST the smallest; beyond these, products would overflow


class Smoothing(Check):
    """The rules of a profile, and those that the current refit has applied.

    Args:
        profile: the profile, by names of sent tensors; each expert has its own rules.
        frozen: whether to quantize with the profile's scales; otherwise every refit computes new ones.
        device: device of the resident weights, on which tensors are multiplied.
        may_miss: returns whether this rank's loaders may skip a tensor of this name.

    Raises:
        BadCheckpoint: a factor or a scale is not valid.
    """

    def __init__(
        self,
        profile: Profile,
        frozen: bool,
        device: torch.device | str = "cpu",
        may_miss: Callable[[str], bool] = lambda name: False,
    ):
        for name, rule in profile.rules.items():
            _check_rule(name, rule, frozen)
        self.frozen, self.device = frozen, torch.device(device)
        self.rules = {name: self._held(rule) for name, rule in profile.rules.items()}
        self._rounded = profile.arithmetic != "float32"
        self._may_miss = may_miss
        self._unsmoothed: set[str] | None = set()  # None once they have been logged
        self._unreached: set[str] = set()  # names that need no rule
        self.begin()

    def begin(self) -> None:
        """Begin a refit: no rule has been applied yet."""
        self._met: set[str] = set()

    def extra_writes(self, resident: ResidentWeight) -> Iterable[tuple[RowWrite, torch.dtype]]:
        if resident.codes:
            yield resident.example(skip_bf16_cast=True, static_scale=self.frozen), torch.float32

    def take(self, weights: Iterable[NamedTensor], received: Received) -> Iterable[NamedTensor]:
        """Return the smoothed tensors, one at a time; they are counted as they were sent."""
        return self.through(weights, received.counted_once)

    def through(
        self,
        weights: Iterable[NamedTensor],
        around: Callable[[torch.Tensor], AbstractContextManager[object]] = nullcontext,
    ) -> Iterable[NamedTensor]:
        """Return the smoothed weights; a list to which no rule applies is returned unchanged.

        Args:
            weights: names and float tensors; stacked experts are split if they have rules.
            around: a context manager for each tensor that has a rule, entered while the result of the rule is used.

        Raises:
            RefitError: a tensor does not fit its rule, or has no rule and needs one (named in the message).
        """
        if isinstance(weights, (list, tuple)) and not any([self._is_ruled(*pair) for pair in weights]):
            return weights
        return self._one_by_one(weights, around)

    def is_exact(self, name: str) -> bool:
        """Return whether `through` gives float32 for this tensor, which is quantized without rounding to BF16."""
        rule = self.rules.get(name)
        return rule is not None and rule.quantized

    def scale_of(self, name: str) -> torch.Tensor | None:
        """Return the frozen scales (N) of a tensor's rows; None if there are none."""
        return self.rules[name].scale if name in self.rules else None

    def note(self, name: str, quantized: bool) -> None:
        """Record whether the engine quantizes a tensor: `check` logs those without a rule."""
        if self._unsmoothed is not None and quantized and not self.is_exact(name):
            self._unsmoothed.add(name)

    def check(self, entries: Mapping[str, Entry]) -> None:
        """End the refit: every rule must have been applied, since the model would otherwise be only partly smoothed.

        Raises:
            RefitError: some rules were not applied; the message names them.
        """
        missed = [name for name in self.rules if name not in self._met and not self._may_miss(name)]
        if missed:
            raise RefitError(
                f"{len(missed)} of the profile's {len(self.rules)} parameters were not sent, so the model is "
                f"only partly smoothed: {_listed(missed)}. Create the profile from this model, with the "
                "parameter names that the trainer sends"
            )
        if self._unsmoothed:
            count, names = len(self._unsmoothed), _listed(sorted(self._unsmoothed))
            logger.info("%d quantized parameters have no rule in the profile and are not smoothed: %s", count, names)
        self._unsmoothed = None

    def _held(self, rule: Rule) -> Rule:
        """Return a rule on the device, with its scale only if it is used."""
        scaled = self.frozen and rule.quantized
        used = {part: tensor for part, tensor in rule.tensors().items() if part != "scale" or scaled}
        moved = {part: tensor.to(self.device, torch.float32).contiguous() for part, tensor in used.items()}
        return Rule(rule.quantized, **moved)

    def _is_ruled(self, name: str, tensor: torch.Tensor) -> bool:
        parts = [part for part, _ in one_by_one(name, tensor)]
        for part in parts:
            if part not in self.rules and part not in self._unreached:
                self._check_unreached(part)
        return any(part in self.rules for part in parts)

    def _check_unreached(self, name: str) -> None:
        """Check that no factor reaches a parameter without a rule."""
        if (source := reaches(self.rules, name)) is not None:
            raise RefitError(
                f"{name}: the profile has no rule for this parameter, but smooths {source}, whose output it "
                "reads; create the profile from this model with `ascend-quant profile` (FlashRL's leaves "
                "experts and routers out)"
            )
        self._unreached.add(name)

    def _one_by_one(
        self, weights: Iterable[NamedTensor], around: Callable[[torch.Tensor], AbstractContextManager[object]]
    ) -> Iterator[NamedTensor]:
        for name, tensor in weights:
            if not self._is_ruled(name, tensor):
                yield name, tensor
                continue
            with around(tensor):
                for part, shard in one_by_one(name, tensor):
                    yield part, self._changed(part, shard)

    def _changed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        rule = self.rules.get(name)
        if rule is None:
            return tensor
        _check_fit(name, tensor, rule)
        self._met.add(name)
        x = oracle.smoothed(tensor.to(self.device), rule.input_factor, rule.output_factor, self._rounded)
        return x if rule.quantized else x.to(torch.bfloat16)


def _check_rule(name: str, rule: Rule, frozen: bool) -> None:
    for part, tensor in rule.tensors().items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise BadCheckpoint(
                f"{name}: the profile's {part} has NaN or Inf, or is not a float tensor; create the profile again"
            )
        size = tensor.abs()
        if part != "scale" and ((size < 1 / LARGEST) | (size > LARGEST)).any():
            raise BadCheckpoint(
                f"{name}: the profile's {part} has magnitudes from {float(size.min()):.3g} to "
                f"{float(size.max()):.3g}, out of range for smoothing; create the profile again"
            )
    if rule.scale is not None and ((rule.scale < oracle.TINY) & (rule.scale != 0)).any():
        raise BadCheckpoint(f"{name}: the profile's scale has negative or subnormal elements; create the profile again")
    if frozen and rule.quantized and rule.scale is not None and (rule.scale == 0).any():
        row = int((rule.scale == 0).nonzero()[0])
        raise BadCheckpoint(
            f"{name}: the profile's scale of row {row} is 0, which would keep that row 0 in every sync; leave "
            "frozen_scales out"
        )
    if frozen and rule.quantized and rule.scale is None:
        raise BadCheckpoint(f"{name}: the profile has no scale to freeze; leave frozen_scales out")


def _check_fit(name: str, tensor: torch.Tensor, rule: Rule) -> None:
    if tensor.dtype not in FLOATS:
        raise RefitError(f"{name}: got {tensor.dtype}; send BF16 weights, the engine smooths and quantizes them itself")
    if tensor.dim() not in (1, 2):
        raise RefitError(f"{name}: shape {tuple(tensor.shape)}: a profile applies only to vectors and matrices")
    if tensor.dim() == 1 and rule.quantized:
        raise RefitError(f"{name}: the profile quantizes a vector, which no engine does; create the profile again")
    wanted = {"input_factor": tensor.shape[-1], "output_factor": tensor.shape[0], "scale": tensor.shape[0]}
    for part, held in rule.tensors().items():
        if held.shape != (wanted[part],):
            raise RefitError(
                f"{name}: the profile's {part} has shape {tuple(held.shape)}, but the sent tensor of shape "
                f"{tuple(tensor.shape)} needs ({wanted[part]},); create the profile from this model"
            )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
