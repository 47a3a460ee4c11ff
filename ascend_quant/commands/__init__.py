"""The commands of `ascend-quant`, and tune.py, which is run by itself: options and what they print, a module each."""
