"""How a spawned rank of a test begins and ends."""

import os

import torch
import torch.distributed as dist


def join(rank: int, ranks: int, folder: object) -> None:
    """Be one of so many ranks over gloo, which meet in a folder; with one thread, and variables as verl has them."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    torch.set_num_threads(1)


def leave() -> None:
    """End this process, once every rank has come so far.

    At once: where sharded models still hold a process group, its threads may outlive their owner at Python's own exit,
    and the process aborts ("terminate called without an active exception").
    """
    dist.barrier()
    os._exit(0)
