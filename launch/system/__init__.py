"""One machine: the processes of a run, private files, installed software."""
