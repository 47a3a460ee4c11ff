"""`./run.sh smoke`, `docker run IMAGE smoke`: does this installation work on this machine? One table, one JSON file.

run.py     the parts one after the other, and the file
parts.py   manifest, doctor, operators, refit, generate and train
child.py   a part's work in a process of its own, with a time limit: a crash is a result; what came of it
models.py  the checkpoints of refit and generate
"""
