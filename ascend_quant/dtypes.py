"""The dtypes that weights come in, from a trainer or in a file."""

import torch

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)  # float64 if its values are finite in BF16
