"""A profile: the smoothing rules that turn an updated BF16 weight into the weight of a smoothed W8A8 checkpoint.

rules.py         what is done with each parameter
files.py         a profile's own files, and FlashRL's `.pt`: written, read and checked
checkpoints.py   tensors of a checkpoint folder, one at a time
scales.py        what compressed-tensors says about groups of layers, and what scales must be
w8a8.py          what is quantized in a W8A8 checkpoint, in its two formats
layers.py        which parameters share a factor
arithmetic.py    how tools compute codes, and which weights have given codes
evidence.py      what codes tell about the factors that made them
solve.py         the factors of a norm, what it feeds and the pairs that begin there
equivalence.py   whether a profile leaves the model's function as it is
compare.py       two checkpoints, and the rules that lead from one to the other
"""
