"""The engine's side of a weight sync.

replica.py    verl's vLLM replica: its server knows the refits' receipts, and each sample's replica
worker.py     inside an engine's worker: one refit session around the buckets of one sync
receiver.py   verl's transport, which answers every bucket, whatever has failed
"""
