"""The subcommands of `ascend-quant`, one module each: options and output. app.py registers them."""
