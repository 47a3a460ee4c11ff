"""Launching: the demo on a laptop and training on clusters.

Talks to ascend_quant through commands and files; of its modules it knows the schemes' names alone.
"""
