"""The autotuner (`ascend-quant tune`): search.py measures, linear.py and experts.py have the candidates of a product.

Its results are in kernels/tuned.
"""
