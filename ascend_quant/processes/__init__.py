"""Processes that a command starts, and the causes of their failures. The launcher uses them, too.

child.py         a command in a process of its own, with a time limit and a log
environment.py   variables that every process of a stack has
tree.py          the end of a process and of all that it has started
cause.py         the cause of a failed run, from its log
memory.py        memory of this host, or of its container
"""
