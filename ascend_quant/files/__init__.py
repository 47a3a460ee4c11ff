"""Reading and writing of files: errors name the line, and writes are atomic.

documents.py    JSON and YAML: an error names the file, the line and the key
whole_file.py   atomic file writes
installed.py    versions of installed packages
"""
