"""The amax of q, k and v, observed in the trainer, for the scales of the rollout's KV cache: per layer (fp8), or per
channel of the key and value heads (int8, on NPUs).

They are observed at the inputs of transformers' attention function, after the q and k norms and the rotation, in the
forward pass that computes the log-probabilities of the step's samples. In a step without such a pass (verl's bypass
mode) they are observed during the update. Neither the device is synchronized nor anything communicated before the
weights are sent.

Each step's first pass resets the values; two syncs of one step send the same ones. Before the first pass nothing is
sent for fp8, and the engine derives bounds from the weights (kv_cache/bounds.py). For int8 no bound is tight enough, so
`calibrate_once` runs an extra pass over random tokens.
"""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from ascend_quant.kv_cache.scales import AGE, FP8, Form, scale_of, sent_name
from ascend_quant.refit import RefitError
from ascend_quant.transfer.validate import NamedTensor

ATTENTION = re.compile(r"(?:^|\.)layers\.\d+\.self_attn$")
OBSERVING: list["AmaxObserver"] = []  # active observers; only the last one observes
TOKENS = 512  # random tokens of `calibrate_once`, per rank


class AmaxObserver:
    """Observes the amax of |q|, |k| and |v| of each attention layer during one step's forward passes, on this rank.

    Args:
        form: form of the cache's scales.

    Attributes:
        updates: number of model updates since the observed pass began.
    """

    def __init__(self, form: Form = FP8) -> None:
        self.form = form
        self._of: dict[torch.nn.Module, torch.Tensor] = {}
        self._over = True  # the next pass resets the values
        self.updates = 0

    @property
    def has_seen(self) -> bool:
        """True if a forward pass of this step has been observed."""
        return bool(self._of)

    @contextmanager
    def observe(self) -> Generator[None]:
        """Observe the inputs of attention inside the block, in addition to earlier passes of the same step."""
        if self._over:
            self._of, self._over, self.updates = {}, False, 0
        OBSERVING.append(self)
        try:
            yield
        finally:
            OBSERVING.remove(self)

    @contextmanager
    def observe_update(self) -> Generator[None]:
        """Wrap the step's update: if no forward pass of this step precedes it, the amax is observed in it."""
        if self._over:
            with self.observe():
                yield
        else:
            yield
        self._over, self.updates = True, self.updates + 1

    @torch.no_grad()
    def note(self, module: torch.nn.Module, *qkv_BHSD: torch.Tensor) -> None:
        """Update a layer's running amax with its attention's q, k and v (B, H, S, D), including padding."""
        given = dict(zip("qkv", qkv_BHSD, strict=True))
        dims = (0, 2) if self.form.by_channel else None
        norms = [torch.linalg.vector_norm(given[kind].detach(), torch.inf, dim=dims) for kind in self.form.kinds]
        largest = torch.stack([norm.float().flatten() for norm in norms])
        known = self._of.get(module)
        self._of[module] = largest if known is None else torch.maximum(known, largest)

    def as_sent(self, model: torch.nn.Module, device: torch.device) -> list[NamedTensor]:
        """Return the KV cache scales of all layers, over all ranks, and their age; empty if no rank has observed any.

        A collective: every rank calls it.

        Args:
            device: device of the process group.

        Raises:
            RefitError: no rank observed a layer; the message names it.
        """
        attentions = {plain_name(name): module for name, module in model.named_modules()}
        attentions = {name: module for name, module in attentions.items() if ATTENTION.search(name)}
        rows = [self._seen_by(module).to(device) for module in attentions.values()]
        if not rows:
            raise RefitError(
                f"{type(model).__name__} has no layers.N.self_attn, so KV cache scales cannot be measured; set "
                "kv_cache=auto"
            )
        largest = torch.stack(rows)
        if dist.is_initialized():
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        self._over = True
        seen = (largest[:, 0, 0] >= 0) | largest[:, 0, 0].isnan()
        if not seen.any():
            return []
        if not seen.all():
            name = list(attentions)[int(seen.logical_not().nonzero()[0])]
            raise RefitError(
                f"{name}: its attention does not go through transformers' attention interface, so q, k and v "
                "were not observed and KV cache scales are unknown; set kv_cache=auto, or another "
                "attn_implementation"
            )
        scales = scale_of(largest, self.form)
        named = [
            (sent_name(name, kind), scales[row, column])
            for row, name in enumerate(attentions)
            for column, kind in enumerate(self.form.kinds)
        ]
        return [*named, (AGE, torch.tensor([max(self.updates - 1, 0)], device=device))]

    def _seen_by(self, module: torch.nn.Module) -> torch.Tensor:
        """Return the amax (kinds, channels) of an attention layer; -1 if no pass has used it."""
        if (found := self._of.get(module)) is not None:
            return found
        channels = module.config.num_key_value_heads * module.head_dim if self.form.by_channel else 1
        return torch.full((len(self.form.kinds), channels), -1.0)

    @torch.no_grad()
    def calibrate_once(self, model: torch.nn.Module, device: torch.device) -> None:
        """Run a pass over random tokens, different on every rank, for the KV cache scales of the first sync."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        generator = torch.Generator("cpu").manual_seed(rank)
        size = model.config.get_text_config().vocab_size
        ids = torch.randint(size, (1, TOKENS), generator=generator, device="cpu").to(device)
        with self.observe(), torch.autocast(device.type, torch.bfloat16):
            model(input_ids=ids, position_ids=torch.arange(TOKENS, device=device).unsqueeze(0), use_cache=False)
        self._over = True  # the first step resets the values


def plain_name(name: str) -> str:
    """Strip the parts that FSDP1, activation checkpointing and LoRA add to a module's name."""
    for part in ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "base_model.model."):
        name = name.replace(part, "")
    return name


def looking(original: Callable) -> Callable:
    """Wrap `AttentionInterface.get_interface`, which every layer calls: the returned attention observes q, k and v."""

    def get_interface(self: Any, *args: Any, **kwargs: Any) -> Callable:
        attention = original(self, *args, **kwargs)
        return _noting(attention, OBSERVING[-1]) if OBSERVING else attention

    return get_interface


def _noting(attention: Callable, observer: AmaxObserver) -> Callable:
    @wraps(attention)
    def noted(module: torch.nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kw: Any) -> Any:
        observer.note(module, q, k, v)
        return attention(module, q, k, v, *args, **kw)

    return noted
