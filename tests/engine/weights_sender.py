"""A trainer's process, as far as weight syncs see it: verl's own sender. `python weights_sender.py`

Each line of its input is a sync: a fault of sync_faults.py (or "good"), a socket, a file of weights, with tabs between.
Each is sent by a child of its own, so that the fault may be its end; how it ended is said in a line.
"""

import asyncio
import importlib.util
import os
import signal
import sys
import time
from multiprocessing import resource_tracker
from pathlib import Path

import sync_faults as faults
import torch
import verl
from safetensors.torch import load_file

from ascend_quant.transfer.checksums import sending

STOPPED_SECONDS = 1


def verls_sender() -> type:
    """verl's class by its file, since its package would import vLLM; and what that imports when it sends, once."""
    source = Path(verl.__file__).parent / "workers/rollout/vllm_rollout/bucketed_weight_transfer.py"
    spec = importlib.util.spec_from_file_location("transfer", source)
    spec.loader.exec_module(transfer := importlib.util.module_from_spec(spec))
    importlib.import_module("verl.workers.rollout.utils")

    class Sender(transfer.BucketedWeightSender):
        def _init_buffer(self) -> None:
            super()._init_buffer()
            say("segment", self.shm.name)

    return Sender


def say(*words: object) -> None:
    print(*words, flush=True)


def send(sender: type, fault: str, handle: str, checkpoint: str) -> None:
    weights = [*load_file(checkpoint).items()]
    if change := faults.UNSOUND.get(fault):
        change(weights)
    stream = [*sending(iter(weights))]
    if change := {**faults.WRONG, **faults.HARMLESS}.get(fault):
        change(stream)
    asyncio.run(sender(handle, bucket_size_mb=1, use_shm=True).async_send_weights(faults.in_time(fault, stream)))


def ended(child: int) -> str:
    """How: by its own word, or by which signal. One that stands still is made to go on after a second."""
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
        time.sleep(STOPPED_SECONDS)
        os.kill(child, signal.SIGCONT)


def main() -> None:
    torch.set_num_threads(1)  # so that a fork finds no threads
    resource_tracker.ensure_running()  # this process's: it cleans up behind no child, as where a whole group is killed
    sender = verls_sender()
    say("ready")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                send(sender, *line.rstrip("\n").split("\t"))
            except Exception as error:
                say("error", type(error).__name__, str(error).replace("\n", " "))
                os._exit(1)
            os._exit(0)
        say("ended", ended(child))


if __name__ == "__main__":
    main()
