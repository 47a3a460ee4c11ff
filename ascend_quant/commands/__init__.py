"""The commands of `ascend-quant`, a module each; what they do lies elsewhere, here they only talk to the user."""
