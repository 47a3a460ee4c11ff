"""The engine's side of a weight sync.

replica.py    verl's vLLM replica: its server collects receipts, and marks each sample with its replica
worker.py     inside an engine's worker: one refit session around the buckets of one sync
receiver.py   verl's weight receiver, which answers every bucket even after an error
"""
