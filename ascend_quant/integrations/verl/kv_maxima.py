"""What an fp8 KV cache of the rollout must hold, seen by the trainer: the largest |q|, |k| and |v| of each layer.

They are taken where transformers hands them to the attention of its choice, behind the norms of q and k and the
rotation, in the pass that takes the log-probabilities of the step's samples. A step without such a pass (verl's bypass
mode) takes them while it trains. Nothing waits for the device, and nothing moves between ranks, before the weights
leave.

A new pass begins anew. Two syncs of one step send the same. Before the first pass nothing is sent, and the engine takes
bounds from the weights (refit/kv_bounds.py).
"""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from ascend_quant.refit import RefitError
from ascend_quant.refit.kv_scales import AGE, KINDS, scale_of, sent_name
from ascend_quant.refit.sent import NamedTensor

ATTENTION = re.compile(r"(?:^|\.)layers\.\d+\.self_attn$")
TAKING: list["Maxima"] = []  # those that look at present; the last one sees


class Maxima:
    """Of the passes of one step, on this rank.

    Attributes:
        updates: of the model, since the pass that took them began.
    """

    def __init__(self) -> None:
        self._of: dict[torch.nn.Module, torch.Tensor] = {}
        self._over = True  # the next pass begins anew
        self.updates = 0

    @contextmanager
    def taking(self) -> Generator[None]:
        """Look at what attention gets inside; with the passes before if they are of the same step."""
        if self._over:
            self._of, self._over, self.updates = {}, False, 0
        TAKING.append(self)
        try:
            yield
        finally:
            TAKING.remove(self)

    @contextmanager
    def training(self) -> Generator[None]:
        """The step's update; without a pass before it, it is one."""
        if self._over:
            with self.taking():
                yield
        else:
            yield
        self._over, self.updates = True, self.updates + 1

    @torch.no_grad()
    def note(self, module: torch.nn.Module, *qkv: torch.Tensor) -> None:
        """What a layer's attention gets; padding included."""
        largest = torch.stack([torch.linalg.vector_norm(x.detach(), torch.inf).float() for x in qkv])
        known = self._of.get(module)
        self._of[module] = largest if known is None else torch.maximum(known, largest)

    def as_sent(self, model: torch.nn.Module, device: torch.device) -> list[NamedTensor]:
        """The scales of all layers, of all ranks, by name, and their age; nothing if no rank has seen any.

        A collective: every rank calls it.

        Args:
            device: of the process group.

        Raises:
            RefitError: naming an attention that no rank saw.
        """
        attentions = {plain_name(name): module for name, module in model.named_modules()}
        attentions = {name: module for name, module in attentions.items() if ATTENTION.search(name)}
        nothing = torch.full((len(KINDS),), -1.0, device=device)
        rows = [self._of.get(module, nothing).to(device) for module in attentions.values()]
        if not rows:
            raise RefitError(
                f"{type(model).__name__} has no layers.N.self_attn: no scales of an fp8 KV cache; set auto"
            )
        largest = torch.stack(rows)
        if dist.is_initialized():
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        self._over = True
        seen = (largest[:, 0] >= 0) | largest[:, 0].isnan()
        if not seen.any():
            return []
        if not seen.all():
            name = list(attentions)[int(seen.logical_not().nonzero()[0])]
            raise RefitError(
                f"{name}: its attention is not called as transformers calls one, so nobody saw its q, k and v: the "
                "scales of an fp8 KV cache are not known; set kv_cache=auto, or another attn_implementation"
            )
        scales = scale_of(largest)
        named = [
            (sent_name(name, kind), scales[row, column : column + 1])
            for row, name in enumerate(attentions)
            for column, kind in enumerate(KINDS)
        ]
        return [*named, (AGE, torch.tensor([max(self.updates - 1, 0)], device=device))]


def plain_name(name: str) -> str:
    """A module's name without what FSDP1, checkpointing and LoRA put into it."""
    for part in ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "base_model.model."):
        name = name.replace(part, "")
    return name


def looking(original: Callable) -> Callable:
    """For `AttentionInterface.get_interface`, which every layer asks for its attention at each call."""

    def get_interface(self: Any, *args: Any, **kwargs: Any) -> Callable:
        attention = original(self, *args, **kwargs)
        return _noting(attention, TAKING[-1]) if TAKING else attention

    return get_interface


def _noting(attention: Callable, maxima: Maxima) -> Callable:
    @wraps(attention)
    def noted(module: torch.nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kw: Any) -> Any:
        maxima.note(module, q, k, v)
        return attention(module, q, k, v, *args, **kw)

    return noted
