"""HTTP errors of `vllm serve` while an engine refuses: its reason, with status 409.

A refused request ends with the reason as its stop reason (requests.py). vLLM's serving classes use only the finish
reason, and report "Internal server error", or end a stream without tokens silently. Therefore an error is raised in
place of such an output. A refused call that loads weights (calls.py) would have status 500, upon which clients such as
TRL's retry, and finally report too many retries. 409 means that the engine is not in the required state, and is
reported.

`/health` stays 200 while an engine refuses, since a liveness probe would otherwise kill an engine that the next sync
repairs, and with it the trainer's process group. Its body, which is empty while the engine serves, then is `{"status":
"refusing", "reason": ..}`; and `/metrics` has ascend_quant_refusing, for alerts and routers. Both query the core, which
may be busy: after SECONDS they return the last known state. With several data-parallel cores they report the first.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import cache
from http import HTTPStatus
from typing import Any

from vllm.v1.engine.exceptions import EngineDeadError

from ascend_quant.integrations.vllm import compat
from ascend_quant.integrations.vllm.serving.calls import ASKED
from ascend_quant.integrations.vllm.serving.requests import is_ours
from ascend_quant.transfer.errors import REFUSES, refusal

HEALTH, METRICS = "/health", "/metrics"
SECONDS = 0.5  # half of the default timeout of a Kubernetes probe


def telling(original: Callable) -> Callable:
    """Wrap `__init__` of vLLM's serving classes: their engine raises an error for requests that failed."""
    error = compat.generation_error()

    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if is_ours(self.engine_client):
            self.engine_client = _Telling(self.engine_client, error)

    return __init__


class _Telling:
    """Proxy of an engine's client, whose `generate` raises an error for a request that fails with a reason."""

    def __init__(self, client: Any, error: type[Exception]):
        self._client, self._error = client, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        async with aclosing(self._client.generate(*args, **kwargs)) as outputs:
            async for output in outputs:
                for one in output.outputs:
                    if one.finish_reason == "error" and one.stop_reason:
                        error = self._error(one.stop_reason)
                        error.status_code = HTTPStatus.CONFLICT
                        raise error
                yield output


def answering(original: Callable) -> Callable:
    """Wrap `build_app`: the application gets a middleware that reports why its engine refuses."""

    def build_app(*args, **kwargs):
        app = original(*args, **kwargs)
        app.middleware_stack = None  # already built by vLLM; the next request rebuilds it
        app.add_middleware(_Answering)
        return app

    return build_app


class _Answering:
    """ASGI middleware that responds in place of the application while its engine refuses."""

    def __init__(self, app: Callable):
        self._app, self._heard = app, None

    async def __call__(self, scope: dict[str, Any], receive: Callable, send: Callable) -> None:
        client = scope["type"] == "http" and getattr(scope["app"].state, "engine_client", None)
        if not client or not is_ours(client):
            await self._app(scope, receive, send)
            return
        if scope["path"] in (HEALTH, METRICS):
            why = await self._why(client)
            _gauge().set(why is not None)
            if why is not None and scope["path"] == HEALTH:
                await _answer({"status": "refusing", "reason": refusal(why)}, HTTPStatus.OK)(scope, receive, send)
                return
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if REFUSES not in str(error):
                raise
            said = {"message": str(error), "type": "Conflict", "param": None, "code": HTTPStatus.CONFLICT.value}
            await _answer({"error": said}, HTTPStatus.CONFLICT)(scope, receive, send)

    async def _why(self, client: Any) -> str | None:
        """Return why the engine refuses; None also for a dead engine, which vLLM reports itself."""
        try:
            (self._heard,) = await asyncio.wait_for(client.collective_rpc(ASKED), SECONDS)
        except TimeoutError:
            pass
        except EngineDeadError:
            self._heard = None
        return self._heard


def _answer(body: dict[str, Any], status: HTTPStatus) -> Callable:
    from starlette.responses import JSONResponse

    return JSONResponse(body, status)


@cache
def _gauge() -> Any:
    from prometheus_client import Gauge

    text = "1 while the engine refuses requests: it waits for a weight sync, sleeps, or must be restarted; 0 otherwise."
    return Gauge("ascend_quant_refusing", text, multiprocess_mode="mostrecent")
