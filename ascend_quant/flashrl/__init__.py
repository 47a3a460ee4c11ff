"""FlashRL's files and variables, read and written as FlashRL does; nothing here touches an engine.

functions.py      the names of `--fn` and FLASHRL_CONFIG, and what each means here
config.py         the YAML file: a replica of the engine each entry, also from the words of a command line
files.py          where a config or a profile lies: on this machine or on the Hugging Face hub
variables.py      the FLASHRL_* environment variables; those of logging at work
usercustomize.py  the lines that FlashRL adds to an environment, and the file without them
"""
