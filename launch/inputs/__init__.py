"""What a run reads: data sets as verl reads them (data) and the model (model)."""
