"""What a training's stamps say of its weight syncs, as JSON has it; and what they should say and do not."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.stamped import Stamp, Stamps
from benchmarks.sync_stages import OTHER, Sync, engine_stage, server_stage, staged, syncs_of
from benchmarks.sync_stamps import CUDA, OURS, TARGETS, VERLS

SETTLED = 2  # syncs that are left out: kernels are compiled, connections made, the plan is learnt
PLAIN = "plain"  # the arm without our plugin


def measured(stamps: Stamps, way: str, device: str) -> dict:
    """What a training's stamps say; `faults` are what they do not.

    Args:
        way: which arm.
    """
    syncs = syncs_of(stamps)
    steady = syncs[SETTLED:]
    found = {
        "syncs": [described(sync) for sync in syncs],
        "calls": calls_of(steady),
        "drawn": drawn(middle(steady)) if steady else [],
    }
    return {**found, "faults": list(faults_of_stamps(stamps, syncs, way, device))}


def described(sync: Sync) -> dict:
    """Milliseconds of each stage, and bytes."""
    parts = {"trainer": sync.trainer_stages(), "engine": sync.engine_stages()}
    in_ms = {side: {name: 1e3 * seconds for name, seconds in part.items()} for side, part in parts.items()}
    ranks = [1e3 * one.seconds for one in sync.trainers]
    return {"step": sync.step, "whole": 1e3 * sync.whole, "ranks": ranks, **in_ms, "bytes": sync.bytes()}


def middle(syncs: Sequence[Sync]) -> Sync:
    """The one of median length."""
    return sorted(syncs, key=lambda one: one.whole)[len(syncs) // 2]


def faults_of_stamps(stamps: Stamps, syncs: Sequence[Sync], way: str, device: str) -> Iterator[str]:
    """What makes the figures wrong or incomplete."""
    wanted = {"": True, OURS: way != PLAIN, VERLS: way == PLAIN, CUDA: device == "cuda"}
    for target in TARGETS:
        if wanted[target.of] and target.place not in stamps.found:
            why = "is not there" if target.place in stamps.missing else "was never imported"
            yield f"no stamps of {target.place}: it {why}"
    if len(syncs) <= SETTLED:
        yield f"{len(syncs)} weight syncs were seen, of which the first {SETTLED} are left out"
    elif any(sync.engine() is None for sync in syncs[SETTLED:]):
        yield "no stamps of the engine that the trainer sent to"
    ours = {target.name for target in TARGETS if target.of == OURS}
    if way == PLAIN and (called := sorted({one.name for root in stamps.roots for one in root.all()} & ours)):
        yield f"not verl's own sync: {', '.join(called)} had a part in it"


def lanes(sync: Sync) -> Iterator[tuple[str, Stamp, str, int]]:
    """Each call of the slowest trainer and of its engine, with its stage and how deep it lies in others."""
    engine = sync.engine()
    lane_of = {id(root): ("server", server_stage) for root in sync.server()}
    lane_of |= {id(root): ("engine", engine_stage) for root in sync.engines if _is_theirs(root, engine)}
    lane_of[id(sync.trainer)] = "trainer", sync.trainer_stage
    for root in (sync.trainer, *sync.servers, *sync.engines):
        if id(root) in lane_of:
            lane, stage_of = lane_of[id(root)]
            depths = {id(root): 0}
            for stamp, stage in staged(root, OTHER, stage_of):
                depths |= {id(one): depths[id(stamp)] + 1 for one in stamp.inside}
                yield lane, stamp, stage, depths[id(stamp)]


def _is_theirs(root: Stamp, engine: Stamp | None) -> bool:
    """Whether a call is of the engine's worker that this trainer sends to."""
    return engine is not None and root.process == engine.process


def calls_of(syncs: Sequence[Sync]) -> list[dict]:
    """Every stamped call: what is inside what, how often, how long together, from when; medians over the syncs."""
    table: dict[tuple, list[tuple[float, int, float]]] = defaultdict(list)
    for sync in syncs:
        found: dict[tuple, list[Stamp]] = defaultdict(list)
        path: list[str] = []
        for lane, stamp, _, depth in lanes(sync):
            path[depth:] = [_said(stamp)]
            found[(lane, *path)].append(stamp)
        for key, stamps in found.items():
            start = min(one.start for one in stamps) - sync.trainer.start
            table[key].append((1e3 * sum(one.seconds for one in stamps), len(stamps), 1e3 * start))
    return [
        {"lane": lane, "depth": len(path) - 1, "call": path[-1]}
        | {
            name: median(column)
            for name, column in zip(("ms", "count", "from_ms"), zip(*rows, strict=True), strict=True)
        }
        for (lane, *path), rows in table.items()
    ]


def _said(stamp: Stamp) -> str:
    """The call's name, with what it wakes."""
    wakes = stamp.name.endswith((".wake_up", ".resume")) and isinstance(stamp.note, str)
    return f"{stamp.name} {stamp.note}" if wakes else stamp.name


def drawn(sync: Sync) -> list[dict]:
    """The calls of one sync for the picture, in milliseconds from the trainer's start."""
    return [
        {
            "lane": lane,
            "depth": depth,
            "call": _said(stamp),
            "stage": stage,
            "start": 1e3 * (stamp.start - sync.trainer.start),
            "end": 1e3 * (stamp.end - sync.trainer.start),
        }
        for lane, stamp, stage, depth in lanes(sync)
    ]
