"""`images lock`: the one tool that changes a pin: Python packages, digests of base images, commits of sources.

`packages` writes docker/locks/NAME.txt from NAME.in, and reads it; `refresh` asks registries and git servers what
docker/stacks.yaml should say, and puts it there. A test reads what is committed and asks nobody.
"""
