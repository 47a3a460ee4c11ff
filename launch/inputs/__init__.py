"""The inputs of a run: data sets in verl's format (data) and the model (model)."""
