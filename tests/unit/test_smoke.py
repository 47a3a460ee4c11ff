"""The probes of `ascend-quant smoke` without an engine: what is wrong is named."""

import csv
import ctypes
import io
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from naming import has_line_naming
from safetensors.torch import load_file

from ascend_quant import oracle
from ascend_quant.kernels import cpu
from ascend_quant.refit import Refit
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight
from ascend_quant.schemes import SCHEMES
from ascend_quant.smoke import (
    engine,
    generation,
    installed,
    kernels,
    operators,
    probes,
    results,
    sleep,
)
from ascend_quant.smoke.npu import speed
from ascend_quant.smoke.probes import NotPossible, On, Probe, Seen, carry_out
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result

CPU = On(torch.device("cpu"))


def probe(function=lambda on: Seen({"a": 1}), name: str = "a.one", slow: bool = False) -> Probe:
    return Probe(name, "what it decides", function, ("cpu",), slow, 60)


# ---- a probe
def test_what_a_probe_sees_refuses_or_raises_is_its_result(tmp_path):
    def wrong(on):
        seen = Seen({"differ": 1})
        seen.same("codes", torch.tensor([1, 2, 3]), torch.tensor([1, 5, 3]))
        seen.same("NaN", torch.tensor([float("nan")]), torch.tensor([float("nan")]))
        seen.holds(False, f"it moved to {tmp_path / 'x.so'}")
        return seen

    def missing(on):
        raise NotPossible("there is no vLLM")

    found = carry_out(probe(wrong), CPU)
    assert found.status == FAILED and found.values == {"differ": 1}
    assert has_line_naming(found.reason, "codes: 1 of 3 differ", "number 1: 2", "5", "moved to x.so")
    assert carry_out(probe(lambda on: 1 / 0), CPU).reason == "ZeroDivisionError: division by zero"
    assert carry_out(probe(missing), CPU).status == NOT_APPLICABLE and carry_out(probe(), CPU).status == OK


def test_numbers_that_json_has_not_are_text_and_a_failure_is_not_ok():
    values = {"a": [float("nan"), 1.5], 2: (float("-inf"), True, None, torch.float32)}
    content = results.document([Result("x", "", OK, values=values), Result("y", "", NOT_APPLICABLE)], {"stack": "cpu"})
    assert content["ok"] and content["stack"] == "cpu"
    wanted = {"a": ["nan", 1.5], "2": ["-inf", True, None, "torch.float32"]}
    assert json.loads(results.as_text(content))["probes"][0]["values"] == wanted
    assert not results.document([Result("x", "", FAILED)], {})["ok"]


def test_a_name_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(probes.UnknownProbe, match=r"operators\.schemes"):
        probes.probes_for("cpu", ["operators.codes"])
    assert [one.name for one in probes.probes_for("npu", ["speed"])] == [
        "speed.refit", "speed.refit_calls", "speed.bf16", "speed.int8", "speed.w8a8", "speed.bf16_4", "speed.int8_4",
    ]  # fmt: skip


# ---- operators of this CPU
@pytest.fixture
def of_scheme(monkeypatch):
    """Tries one scheme alone, which takes a sixth of the time."""

    def tried(scheme: str) -> Seen:
        monkeypatch.setattr(cpu, "SERVING", {scheme: cpu.SERVING[scheme]})
        return operators.schemes(CPU)

    return tried


def test_every_scheme_of_this_cpu_passes():
    seen = operators.schemes(CPU)
    assert not seen.problems and set(seen.values) == {one.name for one in SCHEMES.values() if one.quantized}
    assert all(0 < one["product error"] < 0.004 for one in seen.values.values())


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_product_that_is_wrong(monkeypatch, of_scheme, factor):
    right = cpu.SERVING["int8"]
    wrong = right._replace(linear=lambda x, *rest: right.linear(x, *rest) * factor)
    monkeypatch.setitem(cpu.SERVING, "int8", wrong)
    (problem,) = of_scheme("int8").problems
    assert has_line_naming(problem, "int8", "products", "0.006")
    assert "nan" in problem if factor != factor else " 0.01" in problem


def test_codes_that_are_wrong_after_they_were_counted(monkeypatch, of_scheme):
    right = cpu.write

    def wrong(batch, counters, receipt=True):
        right(batch, counters, receipt)
        for job in batch:
            for write, _, _ in job.each():
                if write.layout is None:
                    write.target.view(torch.int8)[0, 0] ^= 1

    monkeypatch.setattr(cpu, "write", wrong)
    problems = of_scheme("int8").problems
    assert any(has_line_naming(one, "448 x 512: codes: 3 of 229376") for one in problems)  # each shard's first
    assert any("read back" in one for one in problems) and not any("written" in one for one in problems)


def test_values_for_training_that_are_wrong(monkeypatch, of_scheme):
    monkeypatch.setattr(cpu, "fake_quantize", lambda w, scheme: w)
    assert any("dequantized values" in one for one in of_scheme("int4_g32").problems)


def test_a_scheme_that_the_device_refuses(monkeypatch, of_scheme):
    def refuses(scheme, shape):
        raise ValueError("this GPU has no FP8")

    monkeypatch.setattr(cpu, "storage", refuses)
    seen = of_scheme("fp8")
    assert not seen.problems and seen.values["fp8"] == "not here: this GPU has no FP8"


def test_a_library_that_a_compiled_kernel_needs_is_named(tmp_path, monkeypatch):
    """A real shared object, linked with one library that goes away and with one that stays."""
    for name in ("gone", "there"):
        compiled(tmp_path / f"lib{name}.so", f"int {name}(void) {{ return 1; }}")
    kernel = tmp_path / "vllm" / "_C.abi3.so"
    kernel.parent.mkdir()
    source = "int gone(void), there(void); int both(void) { return gone() + there(); }"
    compiled(kernel, source, f"-L{tmp_path}", "-lgone", "-lthere")
    loaded = ctypes.CDLL(str(tmp_path / "libthere.so"))  # as torch has loaded its own
    (tmp_path / "libgone.so").unlink()
    spec = SimpleNamespace(submodule_search_locations=[str(kernel.parent)])
    monkeypatch.setattr(installed, "find_spec", lambda package: spec if package == "vllm" else None)
    assert installed.libraries(CPU).problems == ["vllm/_C.abi3.so needs libgone.so"] and loaded.there() == 1


def compiled(file: Path, source: str, *options: str) -> None:
    """A shared object with a name of its own, as libraries have."""
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(file), f"-Wl,-soname,{file.name}", *options]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)


# ---- what an engine must have and say
def test_the_expected_digest_is_what_a_refit_of_the_same_values_gives():
    """Through kernels and residents on one side, by the oracle on the other; a vocabulary is padded."""
    made = torch.Generator().manual_seed(1)
    shapes = {"q.weight": (6, 32), "k.weight": (2, 32), "norm.weight": (32,), "head.weight": (5, 32)}
    sent = {name: torch.randn(shape, generator=made).bfloat16() for name, shape in shapes.items()}
    qk = QuantizedWeight("qk.weight", torch.zeros(8, 32, dtype=torch.int8), torch.zeros(8, 1), 32)
    norm = ResidentWeight("norm.weight", torch.zeros(32, dtype=torch.bfloat16))
    head = ResidentWeight("head.weight", torch.zeros(8, 32, dtype=torch.bfloat16), padded=True)
    refit = Refit([qk, norm, head])
    views = {"q.weight": (qk, qk.data[:6]), "k.weight": (qk, qk.data[6:])}
    views |= {"norm.weight": (norm, norm.data), "head.weight": (head, head.data[:5])}
    with refit.session():
        for name, (resident, view) in views.items():
            slot = refit.batch.new_sources([(name, sent[name].numel())])
            refit.write(slot, resident, view, sent[name])
        head.fill(head.data[5:], 0, slot)
    parts = {"qk.weight": ["q.weight", "k.weight"]}
    parameters = [
        {
            "parts": parts.get(one.name, [one.name]),
            "weight": one.weight,
            "quantized": bool(one.codes),
            "dtype": "bfloat16",
        }
        for one in refit.residents
    ]

    def expected(parameters: list[dict]) -> str:
        return engine.definition_digest(parameters, sent.__getitem__, SCHEMES["int8"])

    assert expected(parameters) == refit.last_receipt.digest
    swapped = parameters[0] | {"parts": ["k.weight", "q.weight"]}
    assert expected([swapped, *parameters[1:]]) != refit.last_receipt.digest
    wide = {"parts": ["norm.weight"], "weight": 1, "quantized": False, "dtype": "float32"}
    digest = oracle.digest(sent["norm.weight"].float())
    assert expected([wide]) == f"{digest:016x}"


def receipt(digest: str, number: int = 2) -> dict:
    return {"digest": digest, "read_back": digest, "number": number}


@pytest.mark.parametrize(
    ("first", "refitted", "fresh", "named"),
    [
        (receipt("a", 1), receipt("b"), receipt("b"), ()),
        (receipt("a", 1), receipt("c") | {"read_back": "b"}, receipt("b"), ("receipt's: c", "wanted b")),
        (receipt("a", 1), receipt("b") | {"read_back": "c"}, receipt("b"), ("read back: c",)),
        (receipt("a", 1), receipt("b"), receipt("d"), ("fresh engine's: d",)),
        (receipt("a", 2), receipt("b"), receipt("b"), ("no refit",)),
        (receipt("b", 1), receipt("b"), receipt("b"), ("same digest",)),
    ],
)
def test_digests_of_each_rank(first, refitted, fresh, named):
    problems = engine.digest_problems([first], [refitted], [fresh], ["b"], "wanted")
    assert len(problems) == bool(named) and all(has_line_naming(one, *named) for one in problems)
    well = receipt("a", 1), receipt("b"), receipt("b")
    of_two = [[one, other] for one, other in zip(well, (first, refitted, fresh), strict=True)]
    problems = engine.digest_problems(*of_two, ["b", "b"], "wanted")
    assert len(problems) == bool(named) and all(has_line_naming(one, "rank 1", *named) for one in problems)


def test_tokens_that_are_not_the_fresh_engine_s():
    right = [list(range(engine.TOKENS))]
    assert engine.token_problems(right, right) == []
    (problem,) = engine.token_problems([[*right[0][:-1], 99]], right)
    assert has_line_naming(problem, "prompt 1", "token 32 is 99", "31")
    assert "2 and 32 tokens" in engine.token_problems([[1, 2]], right)[0]


def test_both_checkpoints_are_the_same_everywhere_and_differ(tmp_path):
    start, then = engine.write_models(tmp_path / "one")
    _, again = engine.write_models(tmp_path / "other")
    assert (then / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    before, after = (load_file(folder / "model.safetensors") for folder in (start, then))
    assert before.keys() == after.keys() and any((before[name] != after[name]).any() for name in before)


@pytest.mark.parametrize("config", [engine.CONFIG, engine.CONFIG | engine.EXPERTS, generation.CONFIG])
def test_models_have_heads_that_npus_serve(config: dict):
    """CANN's attention takes heads of 64, 128 or 192 in packed sequences."""
    head = config["hidden_size"] // config["num_attention_heads"]
    assert head == config.get("head_dim", head) and head in (64, 128, 192)


# ---- an engine through sleeps, a profile
STATE = {"digest": "1", "formats": {"29": 4, "2": 3}, "answers": [[0]]}


def judged(turn: dict | None = None, after: dict | None = None, nz: bool = False) -> list[str]:
    """The problems of a sleep and twenty cycles; the last cycle, and what the sleep left, may be otherwise."""
    found = [
        {"digest": "ab"[number % 2], "answers": [[number % 2]], "free asleep": 60 << 30, "free awake": 50 << 30}
        for number in range(sleep.CYCLES)
    ]
    found[-1] |= turn or {}
    seen = Seen({"before": STATE, "after": STATE | (after or {})})
    sleep.judge(seen, found, ["a", "b"], nz)
    return seen.problems


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, None),
        ({"digest": "c"}, ("cycle 20", "digest c", "b")),
        ({"answers": [[7]]}, ("cycle 20", "answers")),
        ({"free asleep": 59 << 30}, ("free asleep", str(1 << 30))),
        ({"free awake": 49 << 30}, ("free awake", str(1 << 30))),
        ({"free awake": (50 << 30) - sleep.GROWTH}, None),
    ],
)
def test_cycles_that_lose_bytes_answers_or_memory(changes, named):
    problems = judged(changes)
    assert len(problems) == (named is not None) and all(has_line_naming(one, *named) for one in problems)


@pytest.mark.parametrize(
    ("after", "named"),
    [
        ({}, ()),
        ({"digest": "2"}, ("'digest': '2'",)),
        ({"answers": [[1]]}, ("[[1]]",)),
        ({"formats": {}}, ("FRACTAL_NZ",)),
    ],
)
def test_a_sleep_that_loses_bytes_answers_or_formats(after, named):
    problems = judged(after=after, nz=True)
    assert bool(problems) == bool(after) and all(any(name in one for one in problems) for name in named)


def test_checkpoints_that_answer_alike_try_nothing():
    turns = [{"digest": "a", "answers": [[0]], "free asleep": 1, "free awake": 1}] * sleep.CYCLES
    seen = Seen({"before": STATE, "after": STATE})
    sleep.judge(seen, turns, ["a", "a"], nz=False)
    assert has_line_naming(seen.problems[0], "checkpoints")


@pytest.mark.parametrize(
    ("way", "core", "waits", "named"),
    [
        (speed.FUSED, "AI_VECTOR_CORE", 2, ()),
        (speed.FUSED, "AI_VECTOR_CORE", 3, ("3 times",)),
        (speed.FUSED, speed.AI_CPU, 1, ("AI CPU", "Cast")),
        ("codes_plain", speed.AI_CPU, 9, ()),
    ],
)
def test_what_the_fused_refit_may_not_do(way, core, waits, named):
    found = [{"name": "Cast", "calls": 1, "us": 60.0, "on": core}]
    seen = speed.judged(way, found, ["called a synchronizing NPU operation"] * waits + ["another warning"])
    assert seen.values["waits"] == waits and len(seen.problems) == bool(named)
    assert all(has_line_naming(one, *named) for one in seen.problems)


def test_the_table_of_torch_npu_s_profiler_is_summed_by_kernel_and_core():
    """Its columns are those of its CsvHeaders; what takes longest is first."""
    table = (
        "Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Num\n"
        "0,one,DynamicQuant,AI_VECTOR_CORE,1.0,10.5,0,8\n"
        "0,two,DynamicQuant,AI_VECTOR_CORE,20.0,9.5,0,8\n"
        "0,three,Cast,AI_CPU,40.0,100.25,0,1\n"
    )
    assert kernels.summed(csv.DictReader(io.StringIO(table))) == [
        {"name": "Cast", "calls": 1, "us": 100.2, "on": "AI_CPU"},
        {"name": "DynamicQuant", "calls": 2, "us": 20.0, "on": "AI_VECTOR_CORE"},
    ]
