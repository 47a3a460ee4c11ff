"""An NPU's kernels and their times, by name, from torch_npu's profiler."""

import csv
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MOST = 20  # number of kernels in the report, slowest first
TABLE = "kernel_details.csv"


def profiler_into(folder: str) -> Any:
    """Return torch_npu's profiler; `kernels_of` writes its tables, since an engine's process may not start others."""
    from torch_npu import profiler

    detail = profiler._ExperimentalConfig(
        profiler_level=profiler.ProfilerLevel.Level1, export_type=profiler.ExportType.Text
    )
    return profiler.profile(
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
        experimental_config=detail,
        on_trace_ready=profiler.tensorboard_trace_handler(folder, analyse_flag=False),
    )


def kernels_of(folder: str) -> list[dict[str, Any]]:
    """Return each kernel's name, number of calls, total microseconds, and core.

    Raises:
        FileNotFoundError: the profiler has not written a table.
    """
    from torch_npu.profiler import profiler

    profiler.analyse(folder)
    table = next(Path(folder).rglob(TABLE), Path(folder, TABLE))
    with table.open(newline="") as lines:
        return summed(csv.DictReader(lines))


def summed(lines: Iterable[dict[str, str]]) -> list[dict[str, Any]]:
    """Return the rows of torch_npu's table (one per call), summed by type and core."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        found[line["Type"], line["Accelerator Core"]].append(float(line["Duration(us)"]))
    rows = [
        {"name": name, "calls": len(each), "us": round(sum(each), 1), "on": core}
        for (name, core), each in found.items()
    ]
    return sorted(rows, key=lambda one: -one["us"])
