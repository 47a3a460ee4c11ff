"""The trainer's side of a weight sync: the actor sends its weights in the engine's dtype, followed by their checksums.

sender.py         verl's actor worker, whose weights are wrapped where its training engine returns them
options.py        options of a run's weight syncs, read once from verl's settings
weight_sender.py  the pipeline: gathering, digests, delta, metrics
gathering.py      all-gather of FSDP2 shards, many parameters per collective
wire_format.py    the format of each sent parameter: its dtype, BF16, or pre-quantized
prestage.py       keeps updated weights on the device until they are sent
kv_amax.py        amax of keys and values, for the scales of the engines' KV cache
delta_sync.py     delta syncs to disaggregated engines
sync_memory.py    the trainer's cached memory during a sync, overlapped with the engine's wake-up
socket_names.py   socket names unique to the run, for two runs on one host
zmq_watchdog.py   timeout for a receiver that was killed
sync_metrics.py   bytes and seconds of the last sync
hooks.py          monkeypatches of verl for all of this
"""
