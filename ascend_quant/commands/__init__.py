"""The commands of `ascend-quant`, a module each: their options and what they print; what they do is elsewhere."""
