"""Calls to an engine's workers that load weights: the result of each, and its possible effect on the weights.

A call that fails on one worker counts as failed on all, and a refit that it leaves open is closed, so that the next
sync can begin. A refit that a dead trainer has left open is closed when another trainer starts. A client in another
process gets only the text of an error, which starts with REFUSES (transfer/errors.py) if the weights were not applied.
"""

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import nn
from vllm.v1.engine.core import EngineCoreProc

from ascend_quant.integrations.vllm.compat import run_method
from ascend_quant.integrations.vllm.serving.requests import (
    State,
    ask,
    is_ours,
    lost_answers,
    note,
    state_now,
    state_of_worker,
    worker_in,
)
from ascend_quant.integrations.vllm.worker_refit import refit_of_worker
from ascend_quant.refit import RefitError
from ascend_quant.transfer.errors import refusal

logger = logging.getLogger(__name__)

ASKED = "ascend_quant_refusal"  # no worker method: the core itself returns the reason for refusing requests, or None
ANEW = ("init_weight_transfer_engine", "reload_weights")  # a trainer's first call, and a complete sync in one call
UPDATES = ("start_weight_update", "start_draft_weight_update", "update_weights", "finish_weight_update")
PAST = ("reset_weights",)  # vLLM 0.32's method for its /weight_checker, which does not use model.load_weights
KNOWN = ("vllm", "vllm_ascend", "verl", "ascend_quant")  # packages that write weights only through model.load_weights


class Answer(NamedTuple):
    """Result or error of one worker's call, and the worker's state after it.

    Attributes:
        refitted: whether its weights have changed.
        refused: whether the error means that weights were not applied.
    """

    result: Any
    error: Exception | None
    state: State
    refitted: bool
    refused: bool


def answered(original: Callable) -> Callable:
    """Wrap `EngineCore.collective_rpc`: result and state of every worker are known, whichever of them fails."""

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        if not is_ours(self):
            return original(self, method, timeout, args, kwargs)
        if method == ASKED:
            return [state_now(self).why]
        if method in ANEW:
            _abandon_on_all(self, f"{method} was called before this call had ended", if_open=True)
        is_alone = isinstance(self, EngineCoreProc)
        answer = partial(_answer_far_away if is_alone or worker_in(self) is None else _answer, method)
        try:
            answers = original(self, answer, timeout, args, kwargs)
        except Exception as error:
            lost_answers(self, error)
            raise
        note(self, [answer.state for answer in answers])
        failed = next((answer for answer in answers if answer.error is not None), None)
        if failed is None:
            return [answer.result for answer in answers]
        why = next((answer.state.why for answer in answers if answer.state.failed), None)
        if why is None and len({answer.refitted for answer in answers}) > 1:
            why = f"some of its workers have new weights and others do not ({failed.error})"
        if why is not None or method == "update_weights":  # it may fail before a tensor arrives
            _abandon_on_all(self, why or f"update_weights failed ({failed.error})", if_open=why is None)
            ask(self)
        if failed.refused and is_alone:
            raise RefitError(refusal(str(failed.error), method if isinstance(method, str) else "a call"))
        raise failed.error

    return collective_rpc


def _answer(method: str | bytes | Callable, worker: object, /, *args: Any, **kwargs: Any) -> Answer:
    """Carry out a call on a worker."""
    result, error, number, refit = None, None, state_of_worker(worker).number, refit_of_worker(worker)
    try:
        if method == "update_weights" and refit is not None:
            with _read_to_its_end(worker.model_runner.get_model()):
                result = run_method(worker, method, args, kwargs)
        else:
            result = run_method(worker, method, args, kwargs)
    except Exception as caught:
        error = caught
    if refit is not None and may_write(worker, method, (*args, *kwargs.values())):
        refit.may_have_been_written()
    state = state_of_worker(worker)
    return Answer(result, error, state, state.number != number, isinstance(error, RefitError) or method in UPDATES)


@contextmanager
def _read_to_its_end(model: nn.Module) -> Generator[None]:
    """Consume an update to its end, and only then raise the first refusal.

    The sender broadcasts all tensors of an update, and waits without a timeout until every tensor has been received.
    """
    load, refused = model.load_weights, []

    def load_weights(*args: Any, **kwargs: Any) -> Any:
        if not refused:
            try:
                return load(*args, **kwargs)
            except Exception as error:
                refused.append(error)
        return set()

    model.load_weights = load_weights
    try:
        yield
    finally:
        model.load_weights = load
    if refused:
        raise refused[0]


def _answer_far_away(method: str | bytes | Callable, worker: object, /, *args: Any, **kwargs: Any) -> Answer:
    """Carry out a call if the core, or its client, is another process, to which not every exception can be sent."""
    answer = _answer(method, worker, *args, **kwargs)
    if answer.error is None:
        return answer
    logger.error("a call to this worker failed", exc_info=answer.error)
    text = f"worker {worker.rank}: {type(answer.error).__name__}: {answer.error}"
    return answer._replace(error=RuntimeError(text))


def may_write(worker: object, method: str | bytes | Callable, given: tuple[Any, ...] = ()) -> bool:
    """Return whether a call runs code outside of the KNOWN packages, which may have written parameters itself.

    Such code can be a worker extension's method, a function that is sent with the call or passed to it (`apply_model`),
    or a weight transfer that a user registered.
    """
    if method in PAST:
        return True
    runs = [getattr(worker, method, None) if isinstance(method, str) else method, *filter(callable, given)]
    if method in UPDATES:
        runs.append(getattr(worker, "weight_transfer_engine", None))
    return not all(_package_of(one) in KNOWN for one in runs if one is not None)


def _package_of(code: object) -> str:
    return (getattr(code, "__module__", None) or "").partition(".")[0]


def _abandon_on_all(core: object, why: str, if_open: bool) -> None:
    core.model_executor.collective_rpc(_abandon, args=(why, if_open))


def _abandon(worker: object, why: str, if_open: bool) -> None:
    """Fail the open refit on this rank, since it has failed or never begun on another, so that the next one can begin.

    Args:
        if_open: whether a rank without an open refit keeps serving its weights.
    """
    refit = refit_of_worker(worker)
    if refit is not None and not refit.has_failed and (refit.is_open or not if_open):
        refit.fail(RefitError(why))
    worker = getattr(worker, "worker", worker)  # attributes set on vLLM's wrapper of a worker stay on the wrapper
    if getattr(worker, "_weight_update_active", False):  # vLLM's update API leaves it set if an update failed to finish
        worker._weight_update_active = False
        if worker.weight_transfer_engine is not None:  # SkyRL's worker sets the flag without an engine
            worker.weight_transfer_engine.reset_weight_update_target()
