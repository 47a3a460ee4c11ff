"""Which kernels run and for how long, by name, as the device's own profiler has it.

A profile is begun and ended where the kernels are started, in a worker of an engine say, and read afterwards.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

MOST = 20  # kernels, those that take the longest first
HELD = "kernels.json"  # what torch's profiler found; torch_npu's writes tables of its own
TABLE = "kernel_details.csv"


class Profile:
    """A profile of the device's kernels from `start` to `stop`, kept in a folder."""

    def __init__(self, device: torch.device, folder: str) -> None:
        self.device, self.folder = device, folder
        self.profiler = _of_npu(folder) if device.type == "npu" else _of_torch(device)

    def start(self) -> None:
        self.profiler.start()

    def stop(self) -> None:
        """End it, once the device is idle."""
        if self.device.type != "cpu":
            torch.get_device_module(self.device).synchronize()
        self.profiler.stop()
        if self.device.type != "npu":
            on = "cpu" if self.device.type == "cpu" else "device"
            rows = [
                {"name": one.key, "calls": one.count, "us": getattr(one, f"self_{on}_time_total"), "on": on}
                for one in self.profiler.key_averages()
            ]
            Path(self.folder, HELD).write_text(json.dumps(rows))


def _of_torch(device: torch.device) -> Any:
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU if device.type == "cpu" else ProfilerActivity.CUDA])


def _of_npu(folder: str) -> Any:
    """Return torch_npu's profiler; `kernels_of` makes its tables, as an engine's process may not start others."""
    from torch_npu import profiler

    detail = profiler._ExperimentalConfig(
        profiler_level=profiler.ProfilerLevel.Level1, export_type=profiler.ExportType.Text
    )
    return profiler.profile(
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
        experimental_config=detail,
        on_trace_ready=profiler.tensorboard_trace_handler(folder, analyse_flag=False),
    )


def kernels_of(folder: Path) -> list[dict[str, Any]]:
    """Return the name of each kernel, its calls, their microseconds together, and the core that it ran on.

    Raises:
        FileNotFoundError: the profiler has left no table.
    """
    if (held := folder / HELD).exists():
        rows = json.loads(held.read_text())
    else:
        from torch_npu.profiler import profiler

        profiler.analyse(str(folder))
        table = next(folder.rglob(TABLE), folder / TABLE)
        with table.open(newline="") as lines:
            rows = summed(csv.DictReader(lines))
    return sorted((one for one in rows if one["us"] > 0), key=lambda one: -one["us"])


def summed(lines: Iterable[dict[str, str]]) -> list[dict[str, Any]]:
    """The rows of torch_npu's table, one a call, by type and core."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        found[line["Type"], line["Accelerator Core"]].append(float(line["Duration(us)"]))
    return [
        {"name": name, "calls": len(each), "us": round(sum(each), 1), "on": core}
        for (name, core), each in found.items()
    ]
