"""`run.sh images wheelhouse`: everything that a host without containers and without a network installs a stack from."""
