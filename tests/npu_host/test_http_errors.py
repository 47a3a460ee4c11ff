"""HTTP clients of the vLLM releases that NPUs run: are they told why an engine ends a request?"""

import asyncio
from types import SimpleNamespace

import pytest
from vllm.outputs import CompletionOutput

from ascend_quant.integrations.vllm import compat, http_errors
from ascend_quant.integrations.vllm.hooks import WITH_HTTP_SERVER
from ascend_quant.integrations.wrapping import MARK, install

pytestmark = pytest.mark.each_version
REASON = "no weights have been proved since the engine woke up"


class Engine:
    """A client whose engine ends every request with a reason."""

    model_config = renderer = input_processor = vllm_config = None

    async def generate(self):
        ended = CompletionOutput(0, "", [], None, None, finish_reason="error", stop_reason=REASON)
        yield SimpleNamespace(outputs=[ended])


def serving_class() -> type:
    """The one that each of vLLM's HTTP routes is served by a subclass of; it has moved since 0.24."""
    try:
        from vllm.entrypoints.generate.base.serving import GenerateBaseServing
    except ModuleNotFoundError:
        from vllm.entrypoints.openai.engine.serving import OpenAIServing as GenerateBaseServing
    return GenerateBaseServing


def test_a_serving_class_raises_the_reason(monkeypatch):
    serving = serving_class()
    monkeypatch.setattr(serving, "__init__", serving.__init__)  # as it was, afterwards
    monkeypatch.setattr(http_errors, "is_ours", lambda client: True)
    install(WITH_HTTP_SERVER)
    assert hasattr(serving.__init__, MARK)
    models = SimpleNamespace(engine_client=Engine(), model_config=None)
    served = serving(Engine(), models, request_logger=None)

    async def ask() -> None:
        async for _ in served.engine_client.generate():
            pass

    with pytest.raises(compat.generation_error()) as told:
        asyncio.run(ask())
    assert str(told.value) == REASON
