"""Registry of schemes by name, to which each family's file adds its own, and the names of KV cache dtypes."""

from typing import TypeVar

from ascend_quant.schemes.definition import Definition
from ascend_quant.schemes.scheme import Scheme

Defined = TypeVar("Defined", bound=Definition)
KV_CACHES = ("auto", "int8", "fp8")  # values of the option kv_cache


class UnknownScheme(ValueError):
    """Raised for a scheme name that this version does not have."""


class UnregisteredScheme(UnknownScheme):
    """Raised for a scheme without a definition, or with another one than that registered under its name."""


class DuplicateScheme(ValueError):
    """Raised for a second definition under the same name."""


SCHEMES: dict[str, Scheme] = {}
OF_ROWS = ("row", "group")  # elements that can share a scale if rows are quantized a few at a time
_DEFINITIONS: dict[str, Definition] = {}
ALIASES = {"fp8_block:128x128": "fp8_block"}  # the only block size for which engines have kernels


def register(definition: Defined) -> Defined:
    """Make a scheme known by its name; return the definition.

    Raises:
        DuplicateScheme: the name is taken.
        ValueError: kernels have no such kind of quantization, and rows do not have their own scales.
    """
    name = definition.scheme.name
    if name in _DEFINITIONS or name in ALIASES:
        raise DuplicateScheme(f"scheme {name!r} is already registered; registered: {', '.join((*SCHEMES, *ALIASES))}")
    if definition.by_definition and definition.scheme.shares not in OF_ROWS:
        shares = definition.scheme.shares
        only = " or ".join(OF_ROWS)
        raise ValueError(
            f"scheme {name!r} has no `kind` and shares scales by {shares!r}: without `kind` that must be {only}"
        )
    SCHEMES[name], _DEFINITIONS[name] = definition.scheme, definition
    return definition


def get_scheme(name: str) -> Scheme:
    """Return the scheme called `name`.

    Raises:
        UnknownScheme: there is no such scheme; the message names the valid ones.
    """
    name = ALIASES.get(name, name)
    if name not in SCHEMES:
        raise UnknownScheme(f"unknown scheme {name!r}; this version has: {', '.join(SCHEMES)}")
    return SCHEMES[name]


def definition_of(scheme: Scheme) -> Definition:
    """Return the registered definition of a scheme.

    Raises:
        UnregisteredScheme: no scheme, or another one, is registered under this name; the message lists the registered
            schemes.
    """
    found = _DEFINITIONS.get(scheme.name)
    if found is None or (found.scheme is not scheme and found.scheme != scheme):
        why = "nobody registered it" if found is None else f"the registered one is {found.scheme}"
        raise UnregisteredScheme(f"scheme {scheme} has no definition: {why}; defined: {', '.join(_DEFINITIONS)}")
    return found


def no_cache_on_cpus(cache: str) -> str | None:
    """Return why vLLM's engine on this CPU does not support such a KV cache; None if it does."""
    import torch  # imported here, since the names alone need no torch

    if cache == "int8":
        return "vLLM's attention for CPUs stores BF16 or FP8"
    if cache == "fp8" and not torch.cpu._is_avx512_supported():  # CPUs with AMX have it too
        return "this CPU has no AVX-512, which vLLM's fp8 cache needs"
    return None
