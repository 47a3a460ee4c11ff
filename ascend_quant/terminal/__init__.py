"""What the commands of `ascend-quant` and of the launcher share on a terminal.

exits.py      exit statuses, and an error in one line
progress.py   progress bars; without a terminal, a line from time to time
"""
