"""A stand-in for the verl of stack ascend-cann8.5 (commit bcb638649a50), in our own words: what our worker meets there.

Its weight transfer's protocol and the signatures around it, by reading that commit. Where they differ from verl 0.9.1:
the callback gets a bucket's tensors alone, every bucket is answered at once, a receiver that fails closes its socket
without an answer, sockets are named by the device, no list of banned tokens, one model a worker. Where this stands in
for it, and how to run the same tests with the real files: test_verl_older_transfer.py.
"""
