"""python -m npu_smoke.ranks: all_reduce among processes with a device each; one line of JSON."""

import argparse
import datetime
import json
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

ROUNDS = 5
TIMEOUT = datetime.timedelta(seconds=60)


def work(rank: int, ranks: int, backend: str, elements: int, folder: str) -> None:
    """As one rank; the first writes what was found into the folder."""
    device = "cpu"
    if backend == "hccl":
        import torch_npu  # noqa: F401  gives torch the device

        torch.npu.set_device(rank)
        device = f"npu:{rank}"
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=ranks, timeout=TIMEOUT)
    values = torch.full((elements,), float(rank + 1), dtype=torch.bfloat16, device=device)
    dist.all_reduce(values)
    found = sorted(set(values.float().tolist()[:64]))
    begin = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(values)
    last = float(values[-1])  # waits for it
    seconds = (time.perf_counter() - begin) / ROUNDS
    if rank == 0:
        told = {
            "sum": found,
            "expected": [float(ranks * (ranks + 1) // 2)],
            "last": last,
            "GB/s": values.nbytes / seconds / 1e9,
            "ranks": ranks,
        }
        Path(folder, "found.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--elements", type=int, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        shared = (options.ranks, options.backend, options.elements, folder)
        torch.multiprocessing.start_processes(work, shared, options.ranks)  # raises if one of them fails
        print(Path(folder, "found.json").read_text())


if __name__ == "__main__":
    main()
