"""Requests while an engine refuses to serve: no step computes with invalid weights, and the engine stays alive.

An in-flight request, or one that comes, ends with finish reason "error" (older vLLMs: "abort") and the refusal as its
stop reason; one that a pause of the scheduler holds back stays. In the caller's own process a new request is refused by
an exception. The next complete refit heals. `model.compute_logits` refuses too (attach.py), where an error ends the
engine: no step gets there.

Weights reach the workers through `EngineCore.collective_rpc` (calls.py), leave them in sleep and come back in wake_up.
After each such call the core knows whether they may serve; a worker in the core's own process is asked directly. What
came back in wake_up, or what somebody else's code may have written, is looked at only when there is a request, since a
trainer that wakes the weights up often overwrites them at once. A caller in the core's own process may write without a
call: whenever its idle engine gets a request, there is a glance at the weights.
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
    """State of a worker's weights.

    Attributes:
        number: how often they came; None if the model is not ours.
        why: why they may not serve.
        failed: whether that is for a refit that failed.
        unseen: whether they came back from a sleep, somebody else's code may have written them, or scales of the KV
            cache were written, and are to be looked at before a request.
        since: with which number came what the KV cache is written and read by (its scales, a balance of its keys): what
            it holds from before cannot be read. 0 where there is nothing such.
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
    """Look at a worker's weights before a request, then return their state; runs on every worker."""
    refit = refit_of_worker(worker)
    if refit is not None:
        refit.look()
    return state_of_worker(worker)


def is_ours(engine: object) -> bool:
    """Return whether a core, or a client of one, is of an engine that this plugin quantizes."""
    return getattr(engine.vllm_config.quant_config, "get_name", str)() == NAME


def asking(original: Callable) -> Callable:
    """Wrap a method of the engine core: after it the workers are asked whether they may serve."""

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
        if isinstance(result, Future):  # sleep, once the running requests have ended
            result.add_done_callback(lambda done: ask(self))
        else:
            ask(self)
        return result

    return method


def lost_answers(core: object, error: Exception) -> None:
    """Refuse for good: vLLM stopped reading at an error, the workers' answers may lag one call behind from now on."""
    core.ascend_quant_broken = f"a call to its workers failed ({error}); restart the engine"


def ask(core: object) -> None:
    note(core, core.model_executor.collective_rpc(state_of_worker))


def note(core: object, states: list[State]) -> None:
    core.ascend_quant_refusal = next((state.why for state in states if state.why), None)
    core.ascend_quant_unseen = any(state.unseen for state in states)
    _forget_prefixes(core, max(state.number or 0 for state in states), max(state.since for state in states))


def state_now(engine: object) -> State:
    """Return the current state of a worker in this process, else the state after the last call."""
    worker = worker_in(engine)
    if worker is not None:
        return state_of_worker(worker)
    why = getattr(engine, "ascend_quant_broken", None) or getattr(engine, "ascend_quant_refusal", None)
    return State(why=why, unseen=getattr(engine, "ascend_quant_unseen", False))


def _state_for_requests(engine: object) -> State:
    """Return the current state, once weights that came back from a sleep have been looked at."""
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
    """Wrap a step of the engine core: before it the requests in flight end if the engine may not serve."""

    def step(self):
        state = state_now(self) if is_ours(self) else State()
        if state.number is not None and state.since > _known(self):  # weights may have come past the core
            _forget_prefixes(self, state.number, state.since)
        in_flight = _in_flight(self.scheduler) if state.why or state.unseen else []
        why = _state_for_requests(self).why if in_flight else None
        ended = [] if why is None else in_flight
        if ended:
            logger.warning("%d requests are aborted: %s", len(ended), refusal(why))
            self.scheduler.finish_requests([request.request_id for request in ended], ENDED)
        outputs, executed = original(self)  # nothing is left of them but what the workers have to forget
        return _with(outputs, ended, why), executed

    return step


def _in_flight(scheduler: object) -> list:
    """List the requests that the next step, or the one after it, would compute; not those that a pause holds back."""
    pause = getattr(getattr(scheduler, "pause_state", None), "name", "UNPAUSED")
    if pause == "PAUSED_ALL":
        return []
    held = scheduler.running if pause == "PAUSED_NEW" else scheduler.requests.values()
    return [request for request in held if not request.is_finished()]


def _with(outputs: dict[int, EngineCoreOutputs] | None, ended: list, why: str | None) -> dict | None:
    """Return the outputs of a step with the ends of requests, for the client of each."""
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
    """Wrap `EngineCore.add_request`: prefixes that former weights have cached are dropped first."""

    def add_request(self, *args, **kwargs):
        if is_ours(self) and (state := state_now(self)).number is not None:
            _forget_prefixes(self, state.number, state.since)
        return original(self, *args, **kwargs)

    return add_request


def refusing(original: Callable) -> Callable:
    """Wrap `LLMEngine.add_request`: it raises where the core is in this process and may not serve."""

    def add_request(self, *args, **kwargs):
        refit = refit_of_worker(worker_in(self))
        if refit is not None and not self.get_num_unfinished_requests():
            refit.glance()
        if (why := _state_for_requests(self).why) is not None:
            raise RefitError(refusal(why))
        return original(self, *args, **kwargs)

    return add_request


def _known(core: object) -> int:
    """Return the number of the weights that the caches belong to."""
    return getattr(core, "ascend_quant_number", 0)


def _forget_prefixes(core: object, number: int, since: int = 0) -> None:
    """Empty the caches of prefixes and of what towers made of images if new weights have come: old ones filled them.

    Where nothing is left of the KV cache that could be read, what is in flight keeps its tokens, and all its keys and
    values are computed again, with the new weights, scales and balance.
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
