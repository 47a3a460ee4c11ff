"""What an engine computes with on NPUs: linear.py the W8A8 linear layer, experts.py the W8A8 mixture of experts."""
