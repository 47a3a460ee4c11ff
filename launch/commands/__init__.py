"""The commands of `run.sh` that Python has, with their options. launch/cli.py puts them together."""
