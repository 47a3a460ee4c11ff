"""Monkeypatches of Megatron-core: there are none; only modules of single models are changed at run time."""

from ascend_quant.integrations.wrapping import ManualPatch

MANUAL_PATCHES = (
    ManualPatch(
        "the fusions of weight gradients of fake-quantized layers, switched off",
        "ascend_quant.integrations.megatron.qat:_switch_fusions_off",
        why="they would look for main_grad at the fake-quantized weight",
        versions="megatron-core 0.12 to 0.18",
        off="no fake quantization",
    ),
    ManualPatch(
        "the class of a fake-quantized module",
        "ascend_quant.qat.modules:install",
        why="parameters and their names stay the same; forward computes with the values that the engine will have",
        versions="any",
        off="no fake quantization",
    ),
)
