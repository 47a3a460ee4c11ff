"""The autotuner: search.py measures, linear.py and experts.py have the candidates of a product, table.py writes the
file of results, command.py is the command.

Its results are in ascend_quant/kernels/tuned, or in the user's cache.
"""
