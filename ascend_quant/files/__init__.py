"""Files of every kind: read with errors that name the line, written whole or not at all.

documents.py    JSON and YAML: an error names the file, the line and the key
whole_file.py   writes a file whole or not at all
"""
