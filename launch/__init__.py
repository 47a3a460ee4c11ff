"""Launching: the demo on a laptop and training on clusters. Talks to ascend_quant through commands and files only."""
