"""Environment variables of a run (resolve, variables) and the network interface of a host (network)."""
