"""HTTP clients of the vLLM releases that NPUs run: are they told why an engine ends a request?"""

import asyncio
import logging
from importlib import import_module
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from vllm.outputs import CompletionOutput

from ascend_quant.integrations.vllm import compat
from ascend_quant.integrations.vllm.serving import calls, http_errors
from ascend_quant.integrations.vllm.serving.hooks import WITH_HTTP_SERVER
from ascend_quant.integrations.wrapping import MARK, install
from ascend_quant.transfer.errors import refusal

pytestmark = pytest.mark.each_version
REASON = "no weights have been proved since the engine woke up"


@pytest.fixture(autouse=True)
def levels_as_they_were():
    """vLLM's server imports what sets the root logger and its handlers to ERROR, which other tests would meet."""
    root = logging.getLogger()
    before = [(one, one.level) for one in (root, *root.handlers)]
    yield
    for one, level in before:
        one.setLevel(level)


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
    assert str(told.value) == REASON and told.value.status_code == 409


class Client(Engine):
    """Of an engine that refuses what it is asked, by the reason that it knows."""

    why: str | None = REASON

    async def collective_rpc(self, method):
        if method == calls.ASKED:
            return [self.why]
        raise Exception(f"Call to collective_rpc method failed: {refusal('1 missing: w', method)}")  # as vLLM's client


@pytest.fixture
def asked(monkeypatch):
    """A client of a server's application, and its engine; the hook is where this vLLM makes the application."""
    monkeypatch.setattr(http_errors, "is_ours", lambda client: True)
    modules = [target.partition(":")[0] for target in WITH_HTTP_SERVER[1].targets]
    made = [module for name in modules if (module := found(name)) is not None and hasattr(module, "build_app")]
    for module in made:
        monkeypatch.setattr(module, "build_app", module.build_app)  # as it was, afterwards
    install(WITH_HTTP_SERVER)
    assert made and all(hasattr(module.build_app, MARK) for module in made)
    app, engine = http_errors.answering(FastAPI)(), Client()
    app.state.engine_client = engine
    app.get("/health")(lambda: None)
    app.post("/finish")(lambda: asyncio.run(engine.collective_rpc("finish_weight_update")))
    app.post("/other")(lambda: 1 // 0)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client, engine


def found(module: str):
    try:
        return import_module(module)
    except ModuleNotFoundError:
        return None


def test_weights_that_are_not_taken_are_no_fault_of_the_server(asked):
    client, _ = asked
    answer = client.post("/finish")
    assert answer.status_code == 409 and "1 missing: w" in answer.json()["error"]["message"]
    assert client.post("/other").status_code == 500


def test_health_says_why_and_stays_well(asked):
    client, engine = asked
    answer = client.get("/health")
    assert answer.status_code == 200 and REASON in answer.json()["reason"]
    assert http_errors._gauge()._value.get() == 1
    engine.why = None
    assert client.get("/health").json() is None and http_errors._gauge()._value.get() == 0
