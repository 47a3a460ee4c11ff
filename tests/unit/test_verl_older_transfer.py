"""Weight syncs with the verl of stack ascend-cann8.5 (commit bcb638649a50): a receiver that fails ends both sides.

That commit is in no package index, so a stand-in of ours (data/older_verl) speaks its protocol here. With the real
files, by hand, in an environment that has vLLM and what verl imports:

    git clone https://github.com/verl-project/verl SOURCE
    git -C SOURCE checkout bcb638649a50e58494a8ddd92085ad1174f674b8
    VERL_COMMIT_SOURCE=SOURCE python -m pytest tests/unit/test_verl_older_transfer.py -n 0

Trainer and engine's worker are processes of their own, joined by a real socket and real shared memory; the model is a
few resident weights without vLLM.
"""

import os
import queue
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

pytest.importorskip("zmq", reason="verl's weight transfer needs pyzmq")

from older_verl_ends import FAULTY, SAYS

pytestmark = pytest.mark.timeout(240)

HERE = Path(__file__).parent
VERL = os.environ.get("VERL_COMMIT_SOURCE", str(HERE / "data" / "older_verl"))
START, DEADLINE = 120, 60  # seconds until imports are done; in which a sync must have ended on both sides


class End:
    """One side, in its own process."""

    def __init__(self, side: str, device: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "older_verl_ends.py"), side, device],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([VERL, os.environ["PYTHONPATH"]])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            if line.startswith(SAYS):
                self.lines.put(line.removeprefix(SAYS).strip())

    def begin(self, fault: str) -> None:
        self.process.stdin.write(f"{fault}\n")
        self.process.stdin.flush()

    def said(self, timeout: int = DEADLINE) -> str:
        return self.lines.get(timeout=timeout)


@pytest.fixture(scope="module")
def ends():
    device = f"test-{uuid.uuid4().hex}"
    started = [End(side, device) for side in ("receive", "send")]
    try:
        yield started
    finally:
        for end in started:
            end.process.kill()
            end.process.wait(timeout=DEADLINE)


@pytest.fixture(scope="module")
def ready(ends):
    """What each said at its start."""
    return [end.said(START) for end in ends]


def sync(ends: list[End], fault: str) -> str:
    """What the engine says of a sync; the trainer's side ends, too."""
    for end in ends:
        end.begin(fault)
    engine, trainer = (end.said() for end in ends)
    assert trainer == "sent"
    return engine


def test_tokens_behind_the_vocabulary_are_never_sampled(ready):
    assert ready == ["ready [0.0, 0.0, 0.0, -inf]", "ready"]


def test_a_good_sync_lands(ends, ready):
    assert sync(ends, "none") == "served, oracle's bytes: True"


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("nan", f"failed RefitError: weight sync failed: {FAULTY}"),
        ("plugin", "failed RefitError: weight sync failed: Model"),  # before it listens
        ("memory", "failed OSError: no such shared memory"),  # before the first bucket
        ("device", "failed RuntimeError: the device is lost"),  # once the last bucket is loaded
    ],
)
def test_a_receiver_that_fails_ends_both_sides_and_the_next_sync_heals(ends, ready, fault, told):
    assert sync(ends, fault).startswith(told)
    assert sync(ends, "none") == "served, oracle's bytes: True"
