"""The inputs of a run: data sets in verl's format (data, rows), the model (model), disk space (checkpoints)."""
