"""python -m benchmarks.soak MODEL: refits that fail, under load, on vLLM's AsyncLLM; on CPUs, with a small checkpoint.

Clients keep requests in flight. Refit follows refit, each from a sender process of its own; a share of them fails, in
all the ways of `soak_worker.FAULTS` in turn. After each good one the engine must hold that step's bytes and answer;
after each bad one it must refuse. Whoever has a request in flight must hear within SECONDS: a token, an answer or the
reason. In the end memory, descriptors, sockets, processes and mapped shared memory are counted. (vLLM 0.28 leaves one
segment to Python's resource tracker at its own end, refits or none; that is not counted.)
"""

import asyncio
import gc
import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from benchmarks.soak_worker import FAULTS

SECONDS = 5.0
WARM = 0.25  # of the refits pass before memory is counted
ALLOWED = {  # growth, of all processes together
    "bytes": 96 << 20,
    "descriptors": 4,
    "sockets": 2,
    "threads": 4,
    "processes": 0,
    "shared memory": 0,
}
SHARED = "/dev/shm/"

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    model: Annotated[Path, typer.Argument(help="A checkpoint in BF16, one safetensors file.")],
    refits: Annotated[int, typer.Option(min=4, help="How many.")] = 50,
    bad: Annotated[int, typer.Option(min=0, help="How many of them fail.")] = 20,
    clients: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 64,
    ranks: Annotated[int, typer.Option(min=1, help="Tensor parallel.")] = 1,
    seed: Annotated[int, typer.Option(help="Of which fail, and of the prompts.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where the figures go.")] = None,
) -> None:
    """Exit status: 0; 1 if a client heard nothing, an answer was wrong, or something was left; 2 for wrong use."""
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "|".join(map(str, range(ranks))) if ranks > 1 else "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    found = asyncio.run(Soak(model, refits, bad, clients, ranks, seed).run())
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    raise typer.Exit(bool(found["problems"]))


@dataclass
class Client:
    """One after another, requests of its own.

    Attributes:
        heard: when something came, or a request ended.
        asking: since when a request is in flight; None between two.
        ends: how requests ended.
    """

    heard: float = 0.0
    asking: float | None = None
    ends: Counter[str] = field(default_factory=Counter)


class Soak:
    """One run."""

    def __init__(self, model: Path, refits: int, bad: int, clients: int, ranks: int, seed: int):
        self.model, self.ranks, self.random = model, ranks, random.Random(seed)
        self.faults = [FAULTS[i % len(FAULTS)] if i < bad else None for i in range(refits)]
        self.random.shuffle(self.faults)
        self.clients = [Client() for _ in range(clients)]
        self.problems: list[str] = []
        self.digests: dict[float, list[str]] = {}
        self.waits: dict[bool, list[float]] = {True: [], False: []}  # by whether the refit was good
        self.stopping, self.number = False, 0

    async def run(self) -> dict[str, Any]:
        """The figures; `problems` is empty if all went well."""
        self.engine = self._started()
        try:
            running = [asyncio.create_task(self._keep_asking(client)) for client in self.clients]
            counted = None
            for step, fault in enumerate([None, *self.faults]):  # one more: the first learns the plan
                await self._refit(step, fault)
                if step == round(WARM * len(self.faults)):
                    counted = _counted()
            self.stopping = True
            await asyncio.wait_for(asyncio.gather(*running), 60)
            at_end = _counted()
        finally:
            processes = [p for p in _processes()[1:] if "resource_tracker" not in " ".join(p.cmdline())]
            self.engine.shutdown()
        left = await self._left(processes)
        self._judge(counted, at_end, left)
        waits = {"good" if good else "bad": round(max(w, default=0), 3) for good, w in self.waits.items()}
        return {
            "refits": len(self.faults),
            "bad": sum(fault is not None for fault in self.faults),
            "clients": len(self.clients),
            "ranks": self.ranks,
            "ends": dict(sum((client.ends for client in self.clients), Counter())),
            "longest_wait_s": waits,
            "counted": {"warm": counted, "at_end": at_end, "processes_left": left},
            "problems": self.problems,
        }

    def _started(self):
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = AsyncEngineArgs(
            model=str(self.model),
            quantization="ascend_quant",
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=128,
            max_num_seqs=len(self.clients) + 1,  # room for the request after each refit
            gpu_memory_utilization=0.1,
            kv_cache_memory_bytes=256 << 20,
            tensor_parallel_size=self.ranks,
            worker_extension_cls="benchmarks.soak_worker.Soaked",
            disable_log_stats=True,
        )
        return AsyncLLM.from_engine_args(arguments)

    async def _keep_asking(self, client: Client) -> None:
        while not self.stopping:
            client.asking = client.heard = time.monotonic()
            reason, why = await self._ask(self.random.randint(24, 96), client)
            client.asking, client.heard = None, time.monotonic()
            client.ends[reason] += 1
            if reason != "length" and "refuses to generate" not in str(why):
                self.problems.append(f"a request ended with {reason}: {why}")
            await asyncio.sleep(0.02 if reason == "length" else 0.2)

    async def _ask(self, tokens: int, client: Client | None = None) -> tuple[str, str | int | None]:
        """How one request ended, and why."""
        from vllm import SamplingParams

        self.number += 1
        prompt = {"prompt_token_ids": [self.random.randint(2, 60) for _ in range(8)]}
        wanted = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0, detokenize=False)
        async for answer in self.engine.generate(prompt, wanted, f"soak-{self.number}"):
            if client is not None:
                client.heard = time.monotonic()
            last = answer.outputs[0]
        return last.finish_reason, last.stop_reason

    async def _refit(self, step: int, fault: str | None) -> None:
        await asyncio.sleep(self.random.uniform(0.05, 0.4))
        factor = 1.0 + 0.25 * (step % 3)
        at, error = f"refit {step} ({fault or 'good'})", None
        try:
            arguments = (str(self.model), factor, fault, self.random.randrange(self.ranks))
            digests = await self.engine.collective_rpc("soak_sync", args=arguments)
        except Exception as caught:
            error = caught
        if (error is None) != (fault is None):
            self.problems.append(f"{at}: {'accepted' if error is None else error}")
        if error is None and digests != self.digests.setdefault(factor, digests):
            self.problems.append(f"{at}: digests {digests}, those of the same weights before: {self.digests[factor]}")
        await self._hear(at, fault is None)
        try:
            reason, why = await asyncio.wait_for(self._ask(4), SECONDS)
        except asyncio.TimeoutError:
            reason, why = "nothing", f"{SECONDS:g} s"
        if reason != ("length" if fault is None else "error"):
            self.problems.append(f"{at}: a new request ended with {reason}: {why}")

    async def _hear(self, at: str, good: bool) -> None:
        """Wait until everyone who waits has heard something since now."""
        start = time.monotonic()
        waiting = [client for client in self.clients if client.asking is not None]
        while waiting := [client for client in waiting if client.heard <= start and client.asking is not None]:
            if time.monotonic() - start > SECONDS:
                self.problems.append(f"{at}: {len(waiting)} clients heard nothing for {SECONDS:g} s")
                break
            await asyncio.sleep(0.005)
        self.waits[good].append(time.monotonic() - start)

    async def _left(self, processes: list[psutil.Process]) -> int:
        """How many of the engine's processes there are after its end."""
        for _ in range(100):
            alive = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
            if not alive:
                return 0
            await asyncio.sleep(0.1)
        return len(alive)

    def _judge(self, warm: dict[str, int], at_end: dict[str, int], left: int) -> None:
        for what, allowed in ALLOWED.items():
            if at_end[what] > warm[what] + allowed:
                self.problems.append(f"{what}: {at_end[what]} in the end, {warm[what]} when warm")
        if left:
            self.problems.append(f"{left} processes left behind")


def _processes() -> list[psutil.Process]:
    """This one, and those below it."""
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _counted() -> dict[str, int]:
    """What these hold."""
    gc.collect()
    processes = _processes()
    return {
        "bytes": sum(p.memory_info().rss for p in processes),
        "descriptors": sum(p.num_fds() for p in processes),
        "sockets": sum(len(p.net_connections("all")) for p in processes),
        "threads": sum(p.num_threads() for p in processes),
        "processes": len(processes),
        "shared memory": sum(part.path.startswith(SHARED) for p in processes for part in p.memory_maps()),
    }


if __name__ == "__main__":
    app()
