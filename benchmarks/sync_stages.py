"""From the stamps of a training's weight syncs to the stages of each: seconds that add up to the whole.

A call's own time is its duration without that of the calls in it; each call's own time belongs to one stage. So a
stage holds what its calls took without the stages inside them, and the stages' sum is the sync.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.stamped import Stamp, Stamps, gaps, overlap

STEP_END = "PPOTrainerSync.on_step_end"
SYNC, SEND = "ActorRolloutRefWorker.update_weights", "BucketedWeightSender.async_send_weights"
ADAPTER, EXPORT = "ServerAdapter.update_weights", "FSDPEngine.get_per_tensor_param"
RESUME, RECEIVE = "ServerAdapter.resume", "BucketedWeightReceiver.receive_weights"
SERVER_CLEARS = ("vLLMHttpServer.clear_kv_cache", "vLLMHttpServer.set_global_steps")
ENGINE_SYNCS = (
    "RefitWorkerExtension.update_weights_from_ipc",
    "vLLMColocateWorkerExtension.update_weights_from_ipc",
)
MEMORY = ("set_expandable_segments", "empty_cache", "synchronize", "ipc_collect")

CALL, BEFORE, AFTER, OTHER = "Ray call", "memory before", "memory after", "other"
WAKE = {"weights": "wake-up of weights", "kv_cache": "wake-up of the KV cache"}
ENDING, CLEARING, QUEUED = "engine ends", "cache clearing", "device queue"
TRAINER_STAGES = (  # in their order
    CALL,
    BEFORE,
    WAKE["weights"],
    "export",
    "engine asked",
    "bucket made",
    "gathers",
    "digests",
    "bucket copies",
    QUEUED,
    "waits for the engine",
    "cleanup",
    ENDING,
    CLEARING,
    AFTER,
    "barrier",
    WAKE["kv_cache"],
    OTHER,
)
TRAINER = {
    EXPORT: "export",
    "fsdp2_shards": "export",
    "ServerAdapter._execute_method": "engine asked",
    "BucketedWeightSender._init_socket": "bucket made",
    "BucketedWeightSender._init_buffer": "bucket made",
    "own_share": "gathers",
    "Gather.__init__": "gathers",
    "Gather.whole": "gathers",
    "DTensor.full_tensor": "gathers",
    "Digests.add_all": "digests",
    "Digests.as_dict": "digests",
    "encode": "digests",
    SEND: "bucket copies",
    "BucketedWeightSender._direct_send_large_weight": "bucket copies",
    "asks the engine": "waits for the engine",
    "BucketedWeightSender._cleanup": "cleanup",
    ADAPTER: ENDING,
    "barrier": "barrier",
}
ENGINE_STAGES = (
    "opens",
    "bucket opened",
    "waits for the trainer",
    "unpacks",
    "takes",
    "loads",
    "places",
    "flushes",
    QUEUED,
    "proves",
    "closes",
    "cleanup",
    OTHER,
)
ENGINE = {
    "Refit.open": "opens",
    "BucketedWeightReceiver._init_buffer": "bucket opened",
    "waits for the trainer": "waits for the trainer",
    RECEIVE: "unpacks",
    "Receiving.take": "takes",
    "vLLMColocateWorkerExtension._update_weights": "loads",
    "Refit.place": "places",
    "Refit.flush": "flushes",
    "Receiving.prove": "proves",
    "Refit.close": "closes",
    "BucketedWeightReceiver._cleanup": "cleanup",
}


@dataclass(frozen=True)
class Sync:
    """One weight sync.

    Attributes:
        step: that it ended; 0 before the first.
        whole: seconds of `on_step_end`, which is what verl logs; before the first step: of the trainer's call.
        trainers: each rank's call.
        servers, engines: what they did meanwhile, outermost calls.
    """

    step: int
    whole: float
    trainers: list[Stamp]
    servers: list[Stamp]
    engines: list[Stamp]

    @property
    def trainer(self) -> Stamp:
        """The slowest rank's, for which the others wait."""
        return max(self.trainers, key=lambda one: one.seconds)

    def engine(self) -> Stamp | None:
        """The engine's worker that this trainer sends to."""
        handles = {one.note for one in self.trainer.named(SEND)}
        theirs = [one for one in self.engines if {two.note for two in one.named(RECEIVE)} & handles]
        return next((one for one in theirs if one.name in ENGINE_SYNCS), None)

    def server(self) -> list[Stamp]:
        """What the server did that this trainer asks."""
        replicas = {one.note for one in self.trainer.named(ADAPTER)}
        return [one for one in self.servers if one.note in replicas]

    def trainer_stages(self) -> dict[str, float]:
        """Seconds of each of TRAINER_STAGES, which add up to the whole."""
        taken = dict.fromkeys(TRAINER_STAGES, 0.0)
        taken[CALL] = self.whole - self.trainer.seconds
        for stamp, stage in staged(self.trainer, OTHER, self.trainer_stage):
            taken[stage] += stamp.own
        clearing, went_on = self._clearing(), self._went_on()
        taken[ENDING] -= clearing
        taken[CLEARING] += clearing
        taken[WAKE["weights"]] -= went_on
        taken[OTHER] += went_on  # what the calls in both have taken twice
        return taken

    def trainer_stage(self, stamp: Stamp, outer: Stamp | None, stage: str) -> str | None:
        """A call's of the trainer, where it has one of its own."""
        if stamp.name == RESUME:
            return WAKE.get(stamp.note.split(",")[0], stage)  # the weights first, if both
        if stamp.name in MEMORY and outer is not None:
            if outer is self.trainer:
                asked = min((one.start for one in self.trainer.named(EXPORT)), default=self.trainer.end)
                return BEFORE if stamp.start < asked else AFTER
            return QUEUED if outer.name == SEND else None
        if outer is not None and TRAINER.get(outer.name) == "bucket made":
            return None  # it waits for the engine to open the bucket
        return TRAINER.get(stamp.name)

    def _clearing(self) -> float:
        """Of the adapter's own time, that in which its server was clearing caches: a Ray call leaves no stamp here."""
        free = [gap for adapter in self.trainer.named(ADAPTER) for gap in gaps(adapter)]
        cleared = [(one.start, one.end) for one in self.server() if one.name in SERVER_CLEARS]
        return sum(overlap(gap, one) for gap in free for one in cleared)

    def _went_on(self) -> float:
        """Of the engine's wake-up, that in which the trainer made weights."""
        wakes = [one for one in self.trainer.inside if one.name == RESUME]
        others = [one for one in self.trainer.inside if one.name != RESUME]
        return sum(overlap((wake.start, wake.end), (one.start, one.end)) for wake in wakes for one in others)

    def engine_stages(self) -> dict[str, float]:
        """Seconds of each of ENGINE_STAGES, which add up to the engine's call; empty where it left no stamp."""
        engine = self.engine()
        if engine is None:
            return {}
        taken = dict.fromkeys(ENGINE_STAGES, 0.0)
        for stamp, stage in staged(engine, OTHER, engine_stage):
            taken[stage] += stamp.own
        return taken

    def bytes(self) -> dict[str, int]:
        """On each hop: to one rank from the others, and from it to its engine's worker."""
        engine = self.engine()
        gathers = self.trainer.named("Gather.__init__", "DTensor.full_tensor")
        loads = engine.named("vLLMColocateWorkerExtension._update_weights") if engine is not None else []
        return {
            "gathered": sum(one.note or 0 for one in gathers),
            "handed over": sum(one.note or 0 for one in loads),
        }


def staged(stamp: Stamp, stage: str, stage_of: Any, outer: Stamp | None = None) -> Iterator[tuple[Stamp, str]]:
    """Each call with its stage: by its own name, or that of the call it is in."""
    stage = stage_of(stamp, outer, stage) or stage
    yield stamp, stage
    for one in stamp.inside:
        yield from staged(one, stage, stage_of, stamp)


def engine_stage(stamp: Stamp, outer: Stamp | None, stage: str) -> str | None:
    """A call's of an engine's worker, where it has one of its own."""
    if stamp.name in MEMORY and outer is not None:
        return QUEUED if outer.name == RECEIVE else None
    return ENGINE.get(stamp.name)


def server_stage(stamp: Stamp, outer: Stamp | None, stage: str) -> str | None:
    """A call's of a server, where it has one of its own."""
    if stamp.name in SERVER_CLEARS:
        return CLEARING
    return WAKE.get(stamp.note) if stamp.name.endswith(".wake_up") else None


def syncs_of(stamps: Stamps) -> list[Sync]:
    """In their order: each rank's first call is of the first sync, and so on."""
    ranks: dict[str, list[Stamp]] = {}
    for stamp in stamps.roots:
        if stamp.name == SYNC:
            ranks.setdefault(stamp.process, []).append(stamp)
    ends = [stamp for stamp in stamps.roots if stamp.name == STEP_END]
    return [_sync(list(calls), ends, stamps.roots) for calls in zip(*ranks.values(), strict=False)]


def _sync(calls: list[Stamp], ends: Sequence[Stamp], roots: Iterable[Stamp]) -> Sync:
    first, last = min(one.start for one in calls), max(one.end for one in calls)
    step = next((at for at, one in enumerate(ends, 1) if one.start <= first and last <= one.end), 0)
    whole = ends[step - 1].seconds if step else max(one.seconds for one in calls)
    others = [one for one in roots if first <= one.start and one.end <= last and one.name not in (SYNC, STEP_END)]
    servers = [one for one in others if one.name.startswith("vLLMHttpServer.")]
    return Sync(step, whole, calls, servers, [one for one in others if one not in servers])
