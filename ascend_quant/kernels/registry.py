"""Kernel registry: one table per backend with the schemes that it supports, filled by its modules."""

from collections.abc import Callable, Collection

from ascend_quant.kernels.storage import Serving
from ascend_quant.schemes import Scheme, definition_of


class NoKernels(RuntimeError):
    """Raised if there are no kernels for a device, or none for a scheme on it."""


class DuplicateKernels(ValueError):
    """Raised if a backend registers kernels twice for one scheme."""


class ServingTable(dict[str, Serving]):
    """A backend's GEMMs, by scheme name.

    Args:
        backend: cpu, cuda or npu.
        by_definition: makes the GEMMs of a scheme that has only a definition (`Definition.by_definition`); None if the
            backend does not support such schemes.
    """

    def __init__(self, backend: str, by_definition: Callable[[Scheme], Serving] | None = None):
        super().__init__()
        self.backend, self.by_definition = backend, by_definition

    def register(self, serving: Serving, *schemes: str) -> None:
        """Register GEMMs for these schemes.

        Raises:
            DuplicateKernels: one of them is already registered.
        """
        if taken := [name for name in schemes if name in self]:
            raise DuplicateKernels(
                f"{self.backend} already has kernels for scheme {taken[0]}; registered: {', '.join(self)}"
            )
        self.update(dict.fromkeys(schemes, serving))

    def of(self, scheme: Scheme) -> Serving:
        """Return the GEMMs of a scheme.

        Raises:
            UnregisteredScheme: the scheme is not registered.
            NoKernels: the backend does not serve the scheme; the message names those that it serves.
        """
        definition = definition_of(scheme)
        if scheme.name in self:
            return self[scheme.name]
        if definition.by_definition and self.by_definition:
            return self.by_definition(scheme)
        served = ", ".join(self)
        raise NoKernels(f"scheme {scheme.name} is not supported on {self.backend}; supported: {served}")


def check_kind(kind: str, kinds: Collection[str], backend: str) -> None:
    """Raise NoKernels unless the backend's refit kernels support this kind of write (`RowWrite.kind`)."""
    if kind not in kinds:
        raise NoKernels(f"{backend} has no refit kernels for {kind}; it has: {', '.join(kinds)}")
