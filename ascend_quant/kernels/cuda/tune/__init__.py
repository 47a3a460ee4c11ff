"""The autotuner (`ascend-quant tune`): search.py measures, linear.py and experts.py have the candidates of a product.

What it finds lies in kernels/tuned.
"""
