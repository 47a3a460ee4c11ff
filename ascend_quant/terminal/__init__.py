"""Terminal code shared by the commands of `ascend-quant` and of the launcher.

exits.py      exit statuses, and errors in one line
progress.py   progress bars; without a terminal, occasional lines
"""
