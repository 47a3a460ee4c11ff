"""The subcommands of `ascend-quant`, one module each: options and output.

app.py registers all commands except tune.py, which is run as a module.
"""
