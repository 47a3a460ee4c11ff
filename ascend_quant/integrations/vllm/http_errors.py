"""What HTTP clients of `vllm serve` are told when an engine refuses: its reason.

The reason comes as the stop reason of each request that ends (requests.py). vLLM's serving classes look at the finish
reason alone, and say "Internal server error"; a stream that has no token yet they end without a word. Here an error is
raised in place of such an output, before it gets to them.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from ascend_quant.integrations.vllm import compat
from ascend_quant.integrations.vllm.requests import is_ours


def telling(original: Callable) -> Callable:
    """For `__init__` of vLLM's serving classes: they get an engine whose failed requests are errors with the reason."""
    error = compat.generation_error()

    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if is_ours(self.engine_client):
            self.engine_client = _Telling(self.engine_client, error)

    return __init__


class _Telling:
    """An engine's client, whose `generate` raises an error for a request that fails with a reason."""

    def __init__(self, client: Any, error: type[Exception]):
        self._client, self._error = client, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        async with aclosing(self._client.generate(*args, **kwargs)) as outputs:
            async for output in outputs:
                for one in output.outputs:
                    if one.finish_reason == "error" and one.stop_reason:
                        raise self._error(one.stop_reason)
                yield output
