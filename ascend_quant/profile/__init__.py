"""Profiles: the smoothing rules that turn an updated BF16 weight into the weight of a smoothed W8A8 checkpoint.

rules.py         the rule of each parameter: factors and scales
files.py         reading, writing and validation of our profile files and FlashRL's `.pt`
checkpoints.py   tensors of a checkpoint folder, one at a time
scales.py        compressed-tensors' groups of layers, and validation of scales
w8a8.py          the quantized layers of a W8A8 checkpoint, in its two formats
layers.py        groups of parameters that share a factor
arithmetic.py    the rounding of tools, and the weights that round to a given code
evidence.py      evidence about factors from a checkpoint's codes
solve.py         the factors of a norm, its consumers and their pairs
equivalence.py   whether a profile preserves the model's function
compare.py       comparison of two checkpoints, which yields the rules between them
"""
