"""Metrics that each step logs.

sync_reports.py       metrics of the last sync, from senders and replicas
receipts.py           merges the reports of all engine workers into one step's metrics; replicas must agree
renamed.py            renamed metrics, which are also logged under their old names
estimators.py         KL (k1, k3) and effective sample size of log-probabilities; `ascend-quant mismatch` uses them too
replica_mismatch.py   the mismatch of each replica, if there are several
"""
