"""The claims of docs/ascend.md that only an NPU can decide: each sentence, its probes, and the value that decides.

`./run.sh smoke --read FILE` says which of them a device has proved or refuted, and writes it into both pages.
"""

from ascend_quant.smoke import judging as by
from ascend_quant.smoke.judging import (
    BATCHES,
    COPIES,
    LIKE_THE_VENDOR,
    OPEN,
    PAPER_MS,
    PROVED,
    REFUTED,
    SHARE_OF_BYTES,
    Claim,
    Decided,
    Results,
)

CLAIMS = [
    Claim(
        "A refit writes the definition's bytes, plain and in FRACTAL_NZ, at the same addresses.",
        "refit 写出的字节与定义一致，普通格式与 FRACTAL_NZ 都是，地址不变。",
        ("operators.codes",),
    ),
    Claim(
        "The fused path rests on operators that this torch_npu has, and that are exact on this device.",
        "fused 路径所依赖的算子在这个 torch_npu 中都有，而且在这个设备上结果精确。",
        ("operators.rounding",),
        by.exact,
    ),
    Claim(
        "A captured ACL graph computes with the weights of the last refit.",
        "已捕获的 ACL 图用最近一次 refit 的权重计算。",
        ("operators.refits",),
        by.graphs,
    ),
    Claim(
        "A refit leaves no memory reserved that was not so before.",
        "refit 之后保留的显存不比之前多。",
        ("operators.refits",),
        by.no_memory,
    ),
    Claim(
        "A NaN or Inf is counted by the tensor that it came in.",
        "NaN 与 Inf 按所在张量计数。",
        ("operators.not_finite",),
    ),
    Claim(
        "W8A8 products, of layers and of experts, are the definition's but for rounding.",
        "线性层与专家的 W8A8 乘积除舍入外与定义一致。",
        ("operators.activations", "operators.products", "operators.grouped_products", "operators.experts"),
    ),
    Claim(
        "Attention decodes from an int8 cache with the scales of the last sync.",
        "注意力用最近一次同步的 scale 从 int8 缓存解码。",
        ("operators.c8",),
    ),
    Claim(
        f"A refit by the fused path takes less time than {COPIES} copies of the BF16 weights.",
        f"fused 路径的一次 refit 比 {COPIES} 次 BF16 权重拷贝更快。",
        ("speed.refit",),
        by.copies,
    ),
    Claim(
        f"A refit of the 28 layers of a 7B takes at most {PAPER_MS / 1e3} s on one device, as on paper.",
        f"7B 的 28 层在一个设备上 refit 一次至多 {PAPER_MS / 1e3} s，与纸面估算一致。",
        ("speed.refit",),
        by.on_paper,
    ),
    Claim(
        "The fused path waits for the device at most twice a refit.",
        "fused 路径每次 refit 至多等待设备两次。",
        ("speed.refit_calls",),
        by.waits,
    ),
    Claim(
        "No operator of the fused path runs on the AI CPU.",
        "fused 路径没有算子在 AI CPU 上执行。",
        ("speed.refit_calls",),
        by.no_ai_cpu,
    ),
    Claim(
        "An engine with captured graphs, refitted in buckets, holds the definition's bytes and answers as a fresh one.",
        "已捕获图的引擎分桶 refit 之后，字节与定义一致，回答与新启动的引擎一致。",
        ("engine.graphs",),
    ),
    Claim(
        "A sleep of level 1 keeps bytes, formats and answers.",
        "sleep level 1 不改变字节、格式和回答。",
        ("engine.sleep",),
        by.slept,
    ),
    Claim(
        "Twenty times asleep, refitted and awake under captured graphs: bytes and answers hold, memory does not grow.",
        "在已捕获的图下休眠、唤醒、refit 二十次：字节与回答不变，显存不增长。",
        ("engine.cycles",),
    ),
    Claim(
        "verl trains with int8 rollouts, graphs and sleep, and every weight that it sent is proved to have arrived.",
        "verl 在图模式与 sleep 下用 int8 rollout 训练，发送的每个权重都被证明已到达。",
        ("train",),
    ),
    Claim(
        "A NaN that verl's trainer sends ends the run with its parameter's name.",
        "verl 训练端发出的 NaN 会终止任务，错误信息指出参数名。",
        ("train.nan",),
    ),
    Claim(
        "verl hands weights to the engine through the device's memory (IPC), not the host's.",
        "verl 通过设备内存（IPC）而不是主机内存把权重交给引擎。",
        ("ipc",),
        by.equals("ipc", "ipc", True),
    ),
    *(
        Claim(
            f"A whole 7B on one device generates more tokens a second with int8 than with BF16, batch {batch}.",
            f"整个 7B 在一个设备上，batch {batch}：int8 每秒生成的 token 比 BF16 多。",
            ("speed.int8", "speed.bf16"),
            by.faster("speed.int8", "speed.bf16", (batch,)),
        )
        for batch in BATCHES
    ),
    Claim(
        f"It generates at least {LIKE_THE_VENDOR} of what vllm-ascend's own W8A8 does, at each of these batches.",
        f"在上述每个 batch 下，速度至少是 vllm-ascend 自带 W8A8 的 {LIKE_THE_VENDOR}。",
        ("speed.int8", "speed.w8a8"),
        by.faster("speed.int8", "speed.w8a8", BATCHES, LIKE_THE_VENDOR),
    ),
    Claim(
        f"Weights of a 7B take at most {SHARE_OF_BYTES} of the bytes that they take in BF16.",
        f"7B 的权重占用至多是 BF16 的 {SHARE_OF_BYTES}。",
        ("speed.int8", "speed.bf16"),
        by.share_of_bytes,
    ),
    Claim(
        "Each layer of a 7B, as one of four ranks has it, is faster in int8 with 64 tokens, activations' quantization "
        "and all.",
        "7B 的每个线性层，按四个 rank 之一所持有的形状，64 个 token：int8 更快，含激活量化。",
        ("speed.linear",),
        by.layers_of_four,
    ),
    Claim(
        "Two devices: each rank holds after a refit what a fresh engine's holds (HCCL, tensor parallel).",
        "两个设备：refit 之后每个 rank 的字节与新启动的引擎一致（HCCL，张量并行）。",
        ("engine.ranks",),
    ),
    Claim(
        "Four devices: so does each rank with experts dealt out whole (expert parallel).",
        "四个设备：专家整体分配时每个 rank 也是如此（专家并行）。",
        ("engine.experts",),
    ),
    Claim(
        "Two devices: a broadcast of 2.2 GB from rank 0 brings every byte.",
        "两个设备：从 rank 0 广播 2.2 GB，每个字节都到达。",
        ("collective.broadcast",),
    ),
    Claim(
        "A whole 7B on four devices generates more tokens a second with int8 than with BF16, batches 8, 64, 256.",
        "整个 7B 在四个设备上，batch 8、64、256：int8 每秒生成的 token 比 BF16 多。",
        ("speed.int8_4", "speed.bf16_4"),
        by.faster("speed.int8_4", "speed.bf16_4", BATCHES),
    ),
    Claim(
        "Eight devices: a step of Qwen2.5-7B on GSM8K takes less time with int8 rollouts than its twin with BF16.",
        "八个设备：Qwen2.5-7B 在 GSM8K 上的一步，int8 rollout 比其 BF16 对照用时更短。",
        ("twins.int8", "twins.bf16"),
        by.shorter,
    ),
]


def decided(files: list[Results]) -> list[Decided]:
    """Each claim by the first file that refutes it; else by the first that proves it; else by the last."""
    order = [REFUTED, PROVED, OPEN]
    return [min((one.decide(each) for each in files), key=lambda found: order.index(found.verdict)) for one in CLAIMS]
