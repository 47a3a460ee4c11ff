"""The real vllm-ascend 0.10 and vLLM 0.10.1 with torch_npu 2.7.1 on host memory: no CANN, no NPU.

In an environment of their own, made from docker/locks/npu-2.7.txt: `python -m pytest tests/npu_host_0_10`. The
host memory is that of tests/npu_host; `host` is what it lacks with these versions, `engine` a vLLM without a worker.
"""
