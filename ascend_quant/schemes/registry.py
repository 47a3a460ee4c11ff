"""Registry of schemes by name, to which each family's file adds its own, and names of KV cache dtypes."""

from typing import TypeVar

from ascend_quant.schemes.definition import Definition
from ascend_quant.schemes.scheme import Scheme

Defined = TypeVar("Defined", bound=Definition)
KV_CACHES = ("auto", "int8", "fp8")  # of keys and values, that the option kv_cache names


class UnknownScheme(ValueError):
    """A scheme name that this version does not have."""


class UnregisteredScheme(UnknownScheme):
    """A scheme that has no definition, or another one than that registered under its name."""


class DuplicateScheme(ValueError):
    """A second definition under a name that is taken."""


SCHEMES: dict[str, Scheme] = {}
OF_ROWS = ("row", "group")  # what can share scales where rows are quantized a few at a time
_DEFINITIONS: dict[str, Definition] = {}
ALIASES = {"fp8_block:128x128": "fp8_block"}  # the one block that engines have kernels for


def register(definition: Defined) -> Defined:
    """Make a scheme known by its name; returns the definition.

    Raises:
        DuplicateScheme: the name is taken.
        ValueError: kernels have no word for what it does, and rows do not have scales of their own.
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
    """The scheme called `name`.

    Raises:
        UnknownScheme: naming the valid ones.
    """
    name = ALIASES.get(name, name)
    if name not in SCHEMES:
        raise UnknownScheme(f"unknown scheme {name!r}; this version has: {', '.join(SCHEMES)}")
    return SCHEMES[name]


def definition_of(scheme: Scheme) -> Definition:
    """Return the registered definition of a scheme.

    Raises:
        UnregisteredScheme: nothing was, or another scheme under this name; naming what is there.
    """
    found = _DEFINITIONS.get(scheme.name)
    if found is None or (found.scheme is not scheme and found.scheme != scheme):
        why = "nobody registered it" if found is None else f"the registered one is {found.scheme}"
        raise UnregisteredScheme(f"scheme {scheme} has no definition: {why}; defined: {', '.join(_DEFINITIONS)}")
    return found


def no_cache_on_cpus(cache: str) -> str | None:
    """Return why vLLM's engine on this CPU has no such KV cache; None if it has."""
    import torch  # who asks for the names alone does without

    if cache == "int8":
        return "vLLM's attention for CPUs stores BF16 or FP8"
    if cache == "fp8" and not torch.cpu._is_avx512_supported():  # CPUs with AMX have it too
        return "this CPU has no AVX-512, which vLLM's fp8 cache needs"
    return None
