"""Metrics that each step logs.

sync_reports.py       the figures of the last sync, of senders and of replicas
receipts.py           from the reports of every engine worker to one step's metrics; replicas must agree
renamed.py            metrics that have new names, and are logged under the old ones too
estimators.py         KL (k1, k3) and effective sample size of log-probabilities; `ascend-quant mismatch` uses them too
replica_mismatch.py   the mismatch of each replica, where there are several
start_up.py           where the time to the end of step 1 goes
"""
