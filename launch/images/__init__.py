"""`run.sh images`: images from one file of pins (docker/stacks.yaml), checked from inside, and brought to hosts."""
