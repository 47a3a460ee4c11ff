"""The options of `quantization_config`, validated: an unknown option or one of the wrong type is an error.

`ignore` is what other quantization configs call ignored_layers or modules_to_not_convert.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from ascend_quant.schemes import get_scheme
from ascend_quant.schemes.layer_names import Ignored, PatternError
from ascend_quant.schemes.registry import KV_CACHES

NAME = "ascend_quant"  # the quantization method's name in engines
EXACT_SCHEME = "int8"  # its products are integer sums, which do not depend on the order
Self = TypeVar("Self", bound="Options")

KINDS: Mapping[object, tuple[type | tuple[type, ...], str]] = {  # JSON type, by a field's annotation
    bool: (bool, "give true or false"),  # the string "false" would be true
    str: (str, "give a name"),
    str | None: ((str, type(None)), "give the path of a file"),
    list[str]: (list, "give a list"),  # a string would become a list of single letters
    list[dict[str, Any]]: (list, "give a list of options"),
}


@dataclass(frozen=True)
class Options:
    """Options of `quantization="ascend_quant"`.

    Attributes:
        scheme: a name from `ascend_quant.schemes`.
        ignore: layers that keep their dtype.
        profile: path of a profile with smoothing factors for all weights.
        frozen_scales: whether to quantize with the profile's scales.
        kv_cache: dtype of the KV cache: auto (the model's); int8, with a scale per token and head (on NPUs per channel,
            updated each step); fp8, with scales per layer, updated each step.
        lm_head_fp32: whether to compute logits in float32: exact products of BF16 activations and weights, summed in
            float32.
        exact: whether a token's log-probability has the same bits in decode, in prefill and in a trainer with
            qat=int8_exact.
        test_reload: whether to reload twice after the engine has started, and compare with the fresh load.
        replicas: options of each data-parallel replica, instead of those above.
    """

    scheme: str = "int8"
    ignore: list[str] = field(default_factory=list)
    profile: str | None = None
    frozen_scales: bool = False
    kv_cache: str = "auto"
    lm_head_fp32: bool = False
    exact: bool = False
    test_reload: bool = False
    replicas: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raise ValueError for a value of the wrong type or incompatible options, UnknownScheme for a scheme."""
        for option in fields(self):
            value, (kind, advice) = getattr(self, option.name), KINDS[option.type]
            if not isinstance(value, kind) or value == "":
                raise ValueError(f"ascend_quant option {option.name}={value!r}: {advice}")
        for pattern in self.ignore:
            _check_pattern(pattern)
        get_scheme(self.scheme)
        if self.kv_cache not in KV_CACHES:
            raise ValueError(f"ascend_quant option kv_cache={self.kv_cache!r}: give one of {', '.join(KV_CACHES)}")
        if self.frozen_scales and self.profile is None:
            raise ValueError(
                "ascend_quant option frozen_scales needs the scales of a profile; set the option profile too"
            )
        if self.exact:
            self._check_exact()
        for rank in range(len(self.replicas)):
            self.of_replica(rank)

    def _check_exact(self) -> None:
        """Raise ValueError for options that depend on the batch, or that a trainer does not have."""
        plain = Options(scheme=EXACT_SCHEME)
        for name in ("scheme", "ignore", "profile", "kv_cache", "lm_head_fp32"):
            given, needed = getattr(self, name), getattr(plain, name)
            if given != needed:
                raise ValueError(f"ascend_quant options exact and {name}={given!r}: exact needs {name}={needed!r}")

    @classmethod
    def of(cls: type[Self], config: Mapping[str, Any]) -> Self:
        """Read the options of a `quantization_config`; raise ValueError as `known` and `__post_init__` do."""
        return cls(**known(cls, {name: value for name, value in config.items() if name != "quant_method"}))

    def of_replica(self: Self, rank: int) -> Self:
        """Return the options of data-parallel replica `rank` (from 0)."""
        if not self.replicas:
            return self
        own = self.replicas[rank % len(self.replicas)]
        _check_replica(own)
        return replace(self, replicas=[], **known(type(self), own))


def _check_pattern(pattern: object) -> None:
    """Raise ValueError unless this is a possible layer name, or a regular expression."""
    if not isinstance(pattern, str) or pattern in ("", "re:"):  # the second one would match every layer
        raise ValueError(
            f"ascend_quant option ignore: {pattern!r} must be a layer name, or re: and a regular expression"
        )
    try:
        Ignored([pattern])
    except PatternError as error:
        raise ValueError(f"ascend_quant option {error}") from error


def _check_replica(own: object) -> None:
    """Raise ValueError unless these are valid options of a replica."""
    if not isinstance(own, Mapping) or "replicas" in own:
        raise ValueError(f"ascend_quant option replicas: {own!r} must be a mapping with the options of one replica")
    if "kv_cache" in own:  # a setting of the whole engine, which is read before its replicas exist
        raise ValueError(
            "ascend_quant option replicas: kv_cache must be the same for all replicas: set it outside replicas"
        )


def known(cls: type[Options], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options if all of them exist; otherwise raise ValueError with the valid names."""
    names = [option.name for option in fields(cls)]
    if unknown := sorted(set(options) - set(names)):
        raise ValueError(f"unknown ascend_quant option {unknown[0]!r}; the options are: {', '.join(names)}")
    return options
