"""A weight sync's stamps, written by hand, and the milliseconds of each stage that they mean."""

import json
from pathlib import Path

from benchmarks.sync_stamps import TARGETS

SEND, RECEIVE = "BucketedWeightSender.", "BucketedWeightReceiver."
WHOLE, SECONDS = 0.200, 0.185  # of a step's end, and of the slower trainer's sync in it
TRAINER = [  # name, begin and end in ms from the sync's, note, the calls in it
    ("set_expandable_segments", 0, 1, None, []),
    ("empty_cache", 1, 4, None, []),
    ("ServerAdapter.resume", 4, 24, "weights", []),
    ("FSDPEngine.get_per_tensor_param", 24, 26, None, [("fsdp2_shards", 25, 26, None, [])]),
    (
        "ServerAdapter.update_weights",
        27,
        130,
        0,
        [
            ("ServerAdapter._execute_method", 27, 29, None, []),
            (
                f"{SEND}async_send_weights",
                29,
                110,
                "a.sock",
                [
                    (f"{SEND}_init_socket", 29, 30, None, []),
                    (f"{SEND}_init_buffer", 30, 34, None, [("asks the engine", 31, 34, None, [])]),
                    ("Gather.__init__", 34, 40, 1000, []),
                    ("Gather.__init__", 40, 41, 500, []),
                    ("Gather.whole", 41, 44, None, []),
                    ("Digests.add_all", 44, 49, None, []),
                    ("synchronize", 60, 67, None, []),
                    ("asks the engine", 67, 97, None, []),
                    ("encode", 97, 98, None, []),
                    (f"{SEND}_cleanup", 100, 110, None, [("ipc_collect", 101, 102, None, [])]),
                ],
            ),
        ],
    ),
    ("synchronize", 130, 131, None, []),
    ("empty_cache", 131, 136, None, []),
    ("barrier", 136, 140, None, []),
    ("ServerAdapter.resume", 140, 180, "kv_cache", []),
    ("set_expandable_segments", 180, 183, None, []),
]
STAGES = {
    "Ray call": 15,
    "memory before": 4,
    "wake-up of weights": 20,
    "export": 2,
    "engine asked": 2,
    "bucket made": 5,
    "gathers": 10,
    "digests": 6,
    "bucket copies": 11 + 2,  # what its loop leaves: from 49 to 60, and from 98 to 100
    "device queue": 7,
    "waits for the engine": 30,
    "cleanup": 10,
    "engine ends": 20 - 7,
    "cache clearing": 7,
    "memory after": 1 + 5 + 3,
    "barrier": 4,
    "wake-up of the KV cache": 40,
    "other": 1 + 2,  # of update_weights itself
}
ENGINE = [
    ("Refit.open", 30, 31, None, []),
    (
        f"{RECEIVE}receive_weights",
        31,
        105,
        "a.sock",
        [
            (f"{RECEIVE}_init_buffer", 31, 34, None, [("waits for the trainer", 31, 33, None, [])]),
            ("waits for the trainer", 34, 68, None, []),
            ("Receiving.take", 70, 73, None, [("Digests.add_all", 71, 72, None, [])]),
            (
                "vLLMColocateWorkerExtension._update_weights",
                73,
                93,
                2000,
                [("Refit.place", 74, 78, None, []), ("Refit.flush", 78, 90, None, [])],
            ),
            ("synchronize", 93, 97, None, []),
            (f"{RECEIVE}_cleanup", 97, 105, None, [("empty_cache", 98, 104, None, [])]),
        ],
    ),
    ("Receiving.prove", 105, 108, None, []),
    ("Refit.close", 108, 112, None, [("Refit.flush", 108, 109, None, [])]),
]
ENGINES = {
    "opens": 1,
    "bucket opened": 1,
    "waits for the trainer": 36,
    "unpacks": 2,
    "takes": 3,
    "loads": 4,
    "places": 4,
    "flushes": 13,
    "device queue": 4,
    "proves": 3,
    "closes": 3,
    "cleanup": 8,
    "other": 3,
}
SERVER = [("vLLMHttpServer.clear_kv_cache", 112, 118, 0), ("vLLMHttpServer.set_global_steps", 119, 120, 0)]


def lines(begin: float, calls: list, parent: int | None, into: list[dict]) -> None:
    """The calls as a process writes them: the inner ones first, for they end first."""
    for name, start, end, note, inside in calls:
        into.append({"id": len(into), "parent": parent, "name": name, "note": note})
        own = into[-1] | {"start": begin + start / 1e3, "end": begin + end / 1e3}
        into[own["id"]] = own
        lines(begin, inside, own["id"], into)


def write(folder: Path, syncs: int = 4, targets=None, trainer=TRAINER, engine=ENGINE) -> None:
    """Of a driver, two trainers, their servers and engines: a sync before the first step, and one after each.

    The second rank is faster by 5 ms, and its server and engine have other names.
    """
    found: dict[str, list[dict]] = {name: [] for name in ("driver", "one", "two", "server", "far", "engine", "other")}
    for number in range(syncs):
        begin = 10.0 * number
        if number:
            lines(begin, [("PPOTrainerSync.on_step_end", -10, 1e3 * WHOLE - 10, None, [])], None, found["driver"])
        whole = [("ActorRolloutRefWorker.update_weights", 0, 1e3 * SECONDS, None, trainer)]
        lines(begin, whole, None, found["one"])
        lines(begin, [("ActorRolloutRefWorker.update_weights", 0, 1e3 * SECONDS - 5, None, [])], None, found["two"])
        for name, replica in (("server", 0), ("far", 1)):
            lines(begin, [(call, *times, replica, []) for call, *times, _ in SERVER], None, found[name])
        lines(begin, [("Worker.wake_up", 5, 20, "weights", [])], None, found["engine"])
        lines(begin, [("RefitWorkerExtension.update_weights_from_ipc", 28, 113, None, engine)], None, found["engine"])
        lines(begin, [("RefitWorkerExtension.update_weights_from_ipc", 28, 199, None, [])], None, found["other"])
    found["driver"] += [{"stamped": target.place} for target in (targets if targets is not None else TARGETS)]
    folder.mkdir(exist_ok=True)
    for name, rows in found.items():
        written = "".join(json.dumps(row) + "\n" for row in reversed(rows))
        (folder / f"{name}.jsonl").write_text(written + '{"id": 7, "par')  # killed while it wrote
