"""The trainer's side of a weight sync: the actor sends its weights in the engine's dtype, followed by their checksums.

sender.py         verl's actor worker, whose weights are wrapped where its training engine hands them out
options.py        how a run's weights leave, read from verl's settings once
weight_sender.py  what they pass on their way out: gathering, digests, a delta, figures
gathering.py      from FSDP2's shards to whole tensors, many parameters a collective
wire_format.py    as what each parameter leaves: its dtype, rounded to BF16, or the engine's codes
prestage.py       weights that are made before an update's shards go to the host
kv_amax.py        largest magnitudes of keys and values, for the scales of the engines' KV cache
delta_sync.py     only what has changed, for engines on devices elsewhere
sync_memory.py    the trainer's cached memory during a sync, and the engine's wake-up beside it
socket_names.py   an address of this run's own, where two runs share a host
zmq_watchdog.py   an end to waiting for a receiver that was killed
sync_metrics.py   bytes and seconds of the last sync
hooks.py          monkeypatches of verl for all of this
"""
