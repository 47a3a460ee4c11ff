"""One machine: processes and what ended them (processes, child, cause), private files, installed software."""
