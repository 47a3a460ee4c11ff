"""./run.sh test npu-smoke [-- OPTIONS]; or python3 -m npu_smoke with the repository and its tests on PYTHONPATH."""

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

WRONG_USE = 2
MINUTES = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, write the file, show the table; 0 if our kernels are right here, 1 if not, 2 for wrong use."""
    options = _parser().parse_args(arguments)
    if why := _why_not():
        print(f"npu-smoke: {why}", file=sys.stderr)
        return WRONG_USE
    from npu_smoke import checks, report, runner

    runner.load()
    try:
        names = checks.choose(options.only)
    except ValueError as why:
        print(f"npu-smoke: --only: {why}", file=sys.stderr)
        return WRONG_USE
    if options.here:
        events = runner.run_here(names, options.device, options.small)
    else:
        budget = runner.Budget.of(options.minutes, options.limit)
        events = runner.run_apart(names, options.device, options.small, budget)
    file = options.out or Path(report.file_name())
    shown = {"small": options.small, "only": options.only, "device": options.device, "minutes": options.minutes}
    begin = report.head(shown)
    results: list[dict[str, Any]] = []
    for result in _with_progress(events, len(names)):
        results.append(result)
        report.write(file, report.document(begin, results))  # each time: a run that is broken off has its file too
    content = report.document(begin, results)
    report.show(content, file)
    return 1 if content["summary"]["needed and failed"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./run.sh test npu-smoke --",
        description="First contact with an Atlas A2 or A3: one JSON file to send back.",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: npu-smoke-HOST-DATE.json, here")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="checks, or groups of them: arithmetic")
    parser.add_argument("--small", action="store_true", help="small shapes, for a dry run")
    parser.add_argument("--device", default="npu:0", help="default: npu:0")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all checks (default: %(default).0f)")
    parser.add_argument(
        "--limit",
        type=float,
        default=float("inf"),
        metavar="S",
        help="at most, for one check (each has a limit of its own)",
    )
    parser.add_argument("--here", action="store_true", help="all in this process, for a debugger")
    return parser


def _why_not() -> str:
    """What is missing in this environment, in one line; "" if nothing is."""
    for name in ("numpy", "torch", "torch_npu"):
        try:
            importlib.import_module(name)
        except Exception as why:  # torch_npu may raise anything if CANN is not set up
            text = " ".join(f"{type(why).__name__}: {why}".split())[:300]
            return (
                f"{sys.executable} cannot import {name} ({text}): choose the environment that your NPU work runs in "
                "(PYTHON=/its/bin/python3) and source CANN's set_env.sh"
            )
    return ""


def _with_progress(events: Iterator[tuple], count: int) -> Iterator[dict[str, Any]]:
    """The results; a line for each check, begun before it is carried out: some take a minute."""
    from npu_smoke import report

    number = 0
    for kind, value in events:
        if kind == "begin":
            print(f"[{number + 1}/{count}] {value} ...", end=" ", flush=True)
        else:
            number += 1
            print(f"{report.verdict(value)}, {value['seconds']:.1f} s", flush=True)
            yield value


if __name__ == "__main__":
    sys.exit(main())
