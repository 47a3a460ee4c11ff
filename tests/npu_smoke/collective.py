"""HCCL between two NPUs of this machine, each of a process of its own."""

from npu_smoke import tools
from npu_smoke.checks import IN_SHORT, Setting, check, require

BACKEND = "hccl"
RANKS = 2
SECONDS = 120.0


@check("collective.all_reduce", needed=False, limit_s=SECONDS + 60)
def all_reduce(on: Setting, numbers: dict) -> None:
    """Does HCCL add up across two NPUs, and how fast?"""
    tools.need_devices(RANKS)
    size = 1 << (12 if on.small else 28)
    with tools.folder() as folder:
        command = tools.module("npu_smoke.ranks", "--ranks", str(RANKS), "--backend", BACKEND, "--elements", str(size))
        numbers |= tools.answer(command, SECONDS, folder)
    numbers[IN_SHORT] = f"{numbers['GB/s']:.1f} GB/s"
    require(numbers["sum"] == numbers["expected"], f"the sum is {numbers['sum']}, expected {numbers['expected']}")
