"""FlashRL's files and variables, read and written as by FlashRL; nothing here depends on an engine.

functions.py      names for `--fn` and FLASHRL_CONFIG, and their meaning here
config.py         the YAML file, with one entry per replica
files.py          configs and profiles on this machine or on the Hugging Face hub
variables.py      the FLASHRL_* environment variables, including logging
usercustomize.py  the lines that FlashRL adds to an environment, and their removal
"""
