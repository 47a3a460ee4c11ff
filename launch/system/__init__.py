"""One machine: processes and causes of their failures (processes, child, cause), private files, installed software."""
