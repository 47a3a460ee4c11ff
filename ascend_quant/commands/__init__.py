"""The subcommands of `ascend-quant`, one module each: options and output. tune.py is run as a module of its own."""
