"""The commands of `run.sh` that Python has, one file each. launch/cli.py puts them together."""
