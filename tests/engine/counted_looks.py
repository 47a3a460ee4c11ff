"""The worker extensions of a verl run, verl's own and ours, in a process that counts its looks at resident weights.

Not a test: test_verl_looks.py names them as `worker_extension_cls`.
"""

from collections import Counter
from functools import wraps

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from ascend_quant.integrations.verl.receiving.worker import RefitWorkerExtension
from ascend_quant.refit.samples import Samples
from ascend_quant.refit.serving_state import ServingState

LOOKS = Counter()


def counted(owner: type, name: str) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def method(*args, **kwargs):
        LOOKS[name] += 1
        return original(*args, **kwargs)

    setattr(owner, name, method)


counted(ServingState, "digest")  # of all bytes
counted(Samples, "bytes")  # a copy of some, to be kept or compared


class Looks:
    def looks(self) -> dict[str, int]:
        """How often, before this call; which is a stranger's."""
        return dict(LOOKS)


class Verls(Looks, vLLMColocateWorkerExtension):
    pass


class Ours(Looks, RefitWorkerExtension):
    pass
