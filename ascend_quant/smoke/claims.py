"""What docs/ascend.md says of NPUs that only a device can decide: each sentence, its probes, the value that decides.

`./run.sh smoke --read FILE` says which of them a device has proved or refuted, and writes it into both pages.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ascend_quant.smoke.npu.data import SEVEN_B_OF_4
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result

Verdict = Literal["proved", "refuted", "open"]
PROVED: Verdict = "proved"
REFUTED: Verdict = "refuted"
OPEN: Verdict = "open"
Results = Mapping[str, Result]
Judge = Callable[[Results], tuple[bool, str]]
FUSED, PAPER_MS, COPIES, WAITS = "codes_fused", 170, 7, 2
BATCHES = ("8", "64", "256")
LIKE_THE_VENDOR, SHARE_OF_BYTES = 0.97, 0.6


@dataclass(frozen=True)
class Claim:
    """A sentence about NPUs.

    Attributes:
        says, says_zh: it, in the languages of the page.
        probes: those that decide.
        judge: whether it holds by what they have seen, and that in short; raises KeyError where they have not seen
            what decides. None: it holds if they have passed.
    """

    says: str
    says_zh: str
    probes: tuple[str, ...]
    judge: Judge | None = None

    def decide(self, results: Results) -> "Decided":
        """By the results that there are."""
        for name in self.probes:
            if name not in results:
                return Decided(self, OPEN, why=f"{name} has not run")
            if (one := results[name]).broke or one.status == NOT_APPLICABLE:
                return Decided(self, OPEN, why=f"{name}: {one.reason}")
        if self.judge is None:
            failed = [f"{name}: {results[name].reason}" for name in self.probes if results[name].status == FAILED]
            return Decided(self, REFUTED if failed else PROVED, why="; ".join(failed))
        try:
            holds, seen = self.judge(results)
        except KeyError as missing:
            return Decided(self, OPEN, why=f"{', '.join(self.probes)}: not seen: {missing.args[0]}")
        return Decided(self, PROVED if holds else REFUTED, seen)


@dataclass(frozen=True)
class Decided:
    """A claim with its verdict, what was measured, and why it is not proved."""

    claim: Claim
    verdict: Verdict
    seen: str = ""
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "claim": self.claim.says, "probes": list(self.claim.probes), "verdict": self.verdict, "seen": self.seen,
            "why": self.why,
        }  # fmt: skip


def decided(files: list[Results]) -> list[Decided]:
    """Each claim by the first file that refutes it; else by the first that proves it; else by the last."""
    order = [REFUTED, PROVED, OPEN]
    return [min((one.decide(each) for each in files), key=lambda found: order.index(found.verdict)) for one in CLAIMS]


def _value(results: Results, probe: str, name: str) -> Any:
    return results[probe].values[name]


def _is(probe: str, name: str, wanted: Any) -> Judge:
    return lambda results: ((found := _value(results, probe, name)) == wanted, f"{name}: {found}")


def _copies(results: Results) -> tuple[bool, str]:
    found = {name: value for name, value in results["speed.refit"].values.items() if name.endswith("of 7B, copies")}
    (name, copies), *_ = found.items() or _missing("copies")
    return copies < COPIES, f"{copies:.2f} ({name.partition(' of')[0]})"


def _on_paper(results: Results) -> tuple[bool, str]:
    ms = _value(results, "speed.refit", "28 layers of 7B, ms")
    return ms <= PAPER_MS, f"{ms / 1e3:.3f} s"


def _waits(results: Results) -> tuple[bool, str]:
    waits = _value(results, "speed.refit_calls", "waits")
    if not waits or _value(results, "speed.refit_calls", "way") != FUSED:  # a refit waits for its counts at least
        _missing("waits of the fused path")
    return waits <= WAITS, str(waits)


def _no_ai_cpu(results: Results) -> tuple[bool, str]:
    if _value(results, "speed.refit_calls", "way") != FUSED:
        _missing("the fused path")
    found = _value(results, "speed.refit_calls", "on the AI CPU")
    return not found, ", ".join(found)


def _no_memory(results: Results) -> tuple[bool, str]:
    values = results["operators.refits"].values
    pairs = [pair for name, pair in values.items() if "bytes reserved" in name] or _missing("bytes reserved")
    grown = max(last - first for first, last in pairs)
    return grown <= 0, f"{grown:+d} B"


def _graphs(results: Results) -> tuple[bool, str]:
    one = results["operators.refits"]
    if "no graphs" in one.values:
        _missing("captured graphs")
    return one.status == OK, ""


def _faster(over: str, under: str, batches: tuple[str, ...], least: float = 1.0) -> Judge:
    """Whether one generates more than `least` times the tokens a second of the other."""

    def judge(results: Results) -> tuple[bool, str]:
        rates = [_value(results, probe, "tokens/s by batch") for probe in (over, under)]
        ratios = [rates[0][batch] / rates[1][batch] for batch in batches]
        return min(ratios) > least, ", ".join(f"{one:.2f}" for one in ratios)

    return judge


def _bytes(results: Results) -> tuple[bool, str]:
    share = _value(results, "speed.int8", "bytes of weights") / _value(results, "speed.bf16", "bytes of weights")
    return share <= SHARE_OF_BYTES, f"{share:.2f}"


def _layers_of_four(results: Results) -> tuple[bool, str]:
    found = [_value(results, "speed.linear", f"{n} x {k}, 64 tokens, us") for n, k in SEVEN_B_OF_4]
    ratios = [one["bf16"] / one["int8"] for one in found]
    return min(ratios) > 1, ", ".join(f"{one:.2f}" for one in ratios)


def _shorter(results: Results) -> tuple[bool, str]:
    int8, bf16 = (_value(results, f"twins.{scheme}", "step, s") for scheme in ("int8", "bf16"))
    return int8 < bf16, f"{int8:.1f} s, {bf16:.1f} s"


def _missing(what: str) -> Any:
    raise KeyError(what)


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
        _is("operators.rounding", "codes by", FUSED),
    ),
    Claim(
        "A captured ACL graph computes with the weights of the last refit.",
        "已捕获的 ACL 图用最近一次 refit 的权重计算。",
        ("operators.refits",),
        _graphs,
    ),
    Claim(
        "A refit leaves no memory reserved that was not so before.",
        "refit 之后保留的显存不比之前多。",
        ("operators.refits",),
        _no_memory,
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
        _copies,
    ),
    Claim(
        f"A refit of the 28 layers of a 7B takes at most {PAPER_MS / 1e3} s on one device, as on paper.",
        f"7B 的 28 层在一个设备上 refit 一次至多 {PAPER_MS / 1e3} s，与纸面估算一致。",
        ("speed.refit",),
        _on_paper,
    ),
    Claim(
        "The fused path waits for the device at most twice a refit.",
        "fused 路径每次 refit 至多等待设备两次。",
        ("speed.refit_calls",),
        _waits,
    ),
    Claim(
        "No operator of the fused path runs on the AI CPU.",
        "fused 路径没有算子在 AI CPU 上执行。",
        ("speed.refit_calls",),
        _no_ai_cpu,
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
        _is("ipc", "ipc", True),
    ),
    *(
        Claim(
            f"A whole 7B on one device generates more tokens a second with int8 than with BF16, batch {batch}.",
            f"整个 7B 在一个设备上，batch {batch}：int8 每秒生成的 token 比 BF16 多。",
            ("speed.int8", "speed.bf16"),
            _faster("speed.int8", "speed.bf16", (batch,)),
        )
        for batch in BATCHES
    ),
    Claim(
        f"It generates at least {LIKE_THE_VENDOR} of what vllm-ascend's own W8A8 does, at each of these batches.",
        f"在上述每个 batch 下，速度至少是 vllm-ascend 自带 W8A8 的 {LIKE_THE_VENDOR}。",
        ("speed.int8", "speed.w8a8"),
        _faster("speed.int8", "speed.w8a8", BATCHES, LIKE_THE_VENDOR),
    ),
    Claim(
        f"Weights of a 7B take at most {SHARE_OF_BYTES} of the bytes that they take in BF16.",
        f"7B 的权重占用至多是 BF16 的 {SHARE_OF_BYTES}。",
        ("speed.int8", "speed.bf16"),
        _bytes,
    ),
    Claim(
        "Each layer of a 7B, as one of four ranks has it, is faster in int8 with 64 tokens, activations' quantization "
        "and all.",
        "7B 的每个线性层，按四个 rank 之一所持有的形状，64 个 token：int8 更快，含激活量化。",
        ("speed.linear",),
        _layers_of_four,
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
        _faster("speed.int8_4", "speed.bf16_4", BATCHES),
    ),
    Claim(
        "Eight devices: a step of Qwen2.5-7B on GSM8K takes less time with int8 rollouts than its twin with BF16.",
        "八个设备：Qwen2.5-7B 在 GSM8K 上的一步，int8 rollout 比其 BF16 对照用时更短。",
        ("twins.int8", "twins.bf16"),
        _shorter,
    ),
]
