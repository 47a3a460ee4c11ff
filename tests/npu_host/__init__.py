"""The real torch_npu on host memory: no CANN, no NPU.

`stubs` makes the installed torch_npu wheel importable, `device` gives "npu:0" memory and CPU arithmetic, `ops` holds a
reference kernel for each NPU operator that this project or vllm-ascend's int8 code calls, `rules` what Atlas A2/A3 ask
of such a call, `formats` the FRACTAL_NZ layout, `recorder` what was called. Whatever is not modelled fails by name.

    import npu_host.stubs; npu_host.stubs.start()      # before torch is imported
    import npu_host.device; npu_host.device.install()  # now torch_npu's operators run on "npu:0"
"""
