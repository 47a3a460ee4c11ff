"""The log of a Ray job while it is written."""

import asyncio
import queue
import threading
import time

from launch.ray_jobs.cluster import Cluster

AGAIN_SECONDS = 1
LAST_SECONDS = 10


class Tail:
    """Reader of a job's log by Ray's websocket; one that breaks is opened again, and goes on where it was."""

    def __init__(self, cluster: Cluster, submission: str) -> None:
        self.cluster, self.submission = cluster, submission
        self.chunks: queue.Queue[str] = queue.Queue()
        self.passed, self.rest = 0, ""  # characters of the log that were passed on; a line that has no end yet
        self.over = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._read()), daemon=True)
        self.thread.start()

    async def _read(self) -> None:
        while not self.over.is_set():
            at = 0
            try:
                async for text in self.cluster.client().tail_job_logs(self.submission):
                    self.chunks.put(text[max(self.passed - at, 0) :])
                    at += len(text)
                    self.passed = max(self.passed, at)
                return
            except (OSError, RuntimeError):  # aiohttp's too; whether the head lives is asked elsewhere
                await asyncio.sleep(AGAIN_SECONDS)

    def lines(self) -> list[str]:
        """Return the whole lines since the last look."""
        new = self.rest
        while not self.chunks.empty():
            new += self.chunks.get()
        *whole, self.rest = new.replace("\r", "\n").split("\n")
        return [line for line in whole if line]

    def last(self) -> list[str]:
        """Return the rest of the log of a job that has ended."""
        deadline = time.monotonic() + LAST_SECONDS
        while self.thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.over.set()
        return [*self.lines(), *filter(None, [self.rest])]
