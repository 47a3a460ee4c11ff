"""verl's experimental trainers, whose engines generate while the trainer trains, with refits.

experimental.py   the shared parts
one_step_off.py   one_step_off_policy: the engines are one step behind
fully_async.py    fully_async_policy: the engines never wait
"""
