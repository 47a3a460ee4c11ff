"""Requests while an engine refuses to serve: no step computes with invalid weights, and the engine stays alive.

Requests that are in flight or arrive end with finish reason "error" ("abort" in older versions) and the refusal as
their stop reason; requests that a paused scheduler holds back are kept. If the engine core is in the caller's process,
a new request raises an exception. The next complete refit ends this state. `model.compute_logits` also refuses
(attach.py), but an error there ends the engine, so no step may reach it.

Weights are loaded through `EngineCore.collective_rpc` (calls.py), released in sleep and restored in wake_up. After each
such call the core knows whether the workers may serve; a worker in the core's own process is queried directly. Weights
that were restored in wake_up, or that foreign code may have written, are checked only when a request arrives, since a
trainer that wakes them up often overwrites them at once. A caller in the core's own process may write without a call,
so an idle engine checks the weights whenever it gets a request.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from ascend_quant.engine.options import NAME
from ascend_quant.integrations.vllm.compat import ENDED, forgets_towers_outputs
from ascend_quant.integrations.vllm.worker_refit import refit_of_worker
from ascend_quant.refit import RefitError
from ascend_quant.transfer.errors import refusal

logger = logging.getLogger(__name__)


class State(NamedTuple):
    """The state of a worker's weights.

    Attributes:
        number: number of times that weights were loaded; None if the model is not ours.
        why: why they may not serve; None if they may.
        failed: whether the reason is a failed refit.
        unseen: whether weights must be checked before the next request: they were restored after sleep, foreign code
            may have written them, or KV cache scales were written.
        since: the `number` since which the KV cache's scales or SmoothAttention factors are valid; older cache entries
            cannot be read. 0 if the cache has none.
    """

    number: int | None = None
    why: str | None = None
    failed: bool = False
    unseen: bool = False
    since: int = 0


def state_of_worker(worker: object) -> State:
    """Return the state of a worker's weights; runs on every worker."""
    refit = refit_of_worker(worker)
    if refit is None:
        return State()
    number = refit.last_receipt.number if refit.last_receipt else 0
    return State(number, refit.why_not_servable(), refit.has_failed, refit.is_to_be_looked_at, refit.cache_since)


def state_once_looked_at(worker: object) -> State:
    """Check a worker's weights before a request, then return their state; runs on every worker."""
    refit = refit_of_worker(worker)
    if refit is not None:
        refit.look()
    return state_of_worker(worker)


def is_ours(engine: object) -> bool:
    """Return whether a core, or a client's core, belongs to an engine that this plugin quantizes."""
    return getattr(engine.vllm_config.quant_config, "get_name", str)() == NAME


def asking(original: Callable) -> Callable:
    """Wrap a method of the engine core: after it, the workers are asked whether they may serve."""

    def method(self, *args, **kwargs):
        if not is_ours(self):
            return original(self, *args, **kwargs)
        try:
            result = original(self, *args, **kwargs)
        except Exception as error:
            if self.vllm_config.parallel_config.world_size > 1:
                lost_answers(self, error)
            else:
                ask(self)
            raise
        if isinstance(result, Future):  # from sleep, which completes once the running requests have ended
            result.add_done_callback(lambda done: ask(self))
        else:
            ask(self)
        return result

    return method


def lost_answers(core: object, error: Exception) -> None:
    """Refuse permanently: vLLM stopped reading at an error, so answers may lag one call behind from now on."""
    core.ascend_quant_broken = f"a call to its workers failed ({error}); restart the engine"


def ask(core: object) -> None:
    note(core, core.model_executor.collective_rpc(state_of_worker))


def note(core: object, states: list[State]) -> None:
    core.ascend_quant_refusal = next((state.why for state in states if state.why), None)
    core.ascend_quant_unseen = any(state.unseen for state in states)
    _forget_prefixes(core, max(state.number or 0 for state in states), max(state.since for state in states))


def state_now(engine: object) -> State:
    """Return the current state of a worker in this process, or else the state after the last call."""
    worker = worker_in(engine)
    if worker is not None:
        return state_of_worker(worker)
    why = getattr(engine, "ascend_quant_broken", None) or getattr(engine, "ascend_quant_refusal", None)
    return State(why=why, unseen=getattr(engine, "ascend_quant_unseen", False))


def _state_for_requests(engine: object) -> State:
    """Return the current state, after weights that were restored from sleep have been checked."""
    state, worker = state_now(engine), worker_in(engine)
    if not state.unseen:
        return state
    if worker is not None:
        return state_once_looked_at(worker)
    note(engine, engine.model_executor.collective_rpc(state_once_looked_at))
    return state_now(engine)


def worker_in(engine: object) -> object | None:
    """Return the engine's worker if it is in this process."""
    driver = getattr(getattr(engine, "model_executor", None), "driver_worker", None)
    return getattr(driver, "worker", None)


def ending(original: Callable) -> Callable:
    """Wrap a step of the engine core: the requests in flight end before it if the engine may not serve."""

    def step(self):
        state = state_now(self) if is_ours(self) else State()
        if state.number is not None and state.since > _known(self):  # weights may have been loaded without the core
            _forget_prefixes(self, state.number, state.since)
        in_flight = _in_flight(self.scheduler) if state.why or state.unseen else []
        why = _state_for_requests(self).why if in_flight else None
        ended = [] if why is None else in_flight
        if ended:
            logger.warning("%d requests are aborted: %s", len(ended), refusal(why))
            self.scheduler.finish_requests([request.request_id for request in ended], ENDED)
        outputs, executed = original(self)  # only lets the workers forget them
        return _with(outputs, ended, why), executed

    return step


def _in_flight(scheduler: object) -> list:
    """Return the requests that the next two steps would compute, without those that a pause holds back."""
    pause = getattr(getattr(scheduler, "pause_state", None), "name", "UNPAUSED")
    if pause == "PAUSED_ALL":
        return []
    held = scheduler.running if pause == "PAUSED_NEW" else scheduler.requests.values()
    return [request for request in held if not request.is_finished()]


def _with(outputs: dict[int, EngineCoreOutputs] | None, ended: list, why: str | None) -> dict | None:
    """Return the outputs of a step together with the ended requests, for each client."""
    for request in ended:
        outputs = {} if outputs is None else outputs
        end = EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=RequestStatus.get_finished_reason(ENDED),
            stop_reason=refusal(why),
        )
        outputs.setdefault(request.client_index, EngineCoreOutputs(outputs=[])).outputs.append(end)
    return outputs


def forgetting(original: Callable) -> Callable:
    """Wrap `EngineCore.add_request`: prefixes cached with previous weights are dropped first."""

    def add_request(self, *args, **kwargs):
        if is_ours(self) and (state := state_now(self)).number is not None:
            _forget_prefixes(self, state.number, state.since)
        return original(self, *args, **kwargs)

    return add_request


def refusing(original: Callable) -> Callable:
    """Wrap `LLMEngine.add_request`: it raises an error if the core is in this process and may not serve."""

    def add_request(self, *args, **kwargs):
        refit = refit_of_worker(worker_in(self))
        if refit is not None and not self.get_num_unfinished_requests():
            refit.glance()
        if (why := _state_for_requests(self).why) is not None:
            raise RefitError(refusal(why))
        return original(self, *args, **kwargs)

    return add_request


def _known(core: object) -> int:
    """Return the number of the weights for which the caches are valid."""
    return getattr(core, "ascend_quant_number", 0)


def _forget_prefixes(core: object, number: int, since: int = 0) -> None:
    """Reset the prefix and encoder caches if new weights have been loaded.

    If no entry of the KV cache can be read any more, requests in flight keep their tokens, and all their keys and
    values are recomputed with the new weights, scales and SmoothAttention factors.
    """
    if number == getattr(core, "ascend_quant_number", None):
        return
    unreadable = since > _known(core)
    if unreadable and core.reset_prefix_cache(reset_running_requests=True) is False:
        raise RefitError("the KV cache is no longer valid, and this engine cannot reset it: restart the engine")
    if not unreadable and core.reset_prefix_cache() is False:
        logger.warning("requests ran during a refit: prefix cache entries of the old weights stay until the next refit")
    else:
        if not forgets_towers_outputs(core):
            logger.warning(
                "this vLLM cannot reset its encoder cache: cached image embeddings of the old weights stay in use"
            )
        core.ascend_quant_number = number
