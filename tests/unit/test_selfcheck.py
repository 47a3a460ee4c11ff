"""`ascend-quant kernels --check`, and the parts of check-engine that need no engine: what is not right is named."""

import ctypes
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from naming import has_line_naming
from safetensors.torch import save_file
from typer.testing import CliRunner

from ascend_quant import oracle
from ascend_quant.cli import app
from ascend_quant.kernels import cpu
from ascend_quant.refit import Refit
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight
from ascend_quant.schemes import SCHEMES
from ascend_quant.selfcheck import expected, libraries, operators
from ascend_quant.selfcheck.operators import check_operators

CPU = torch.device("cpu")


@pytest.fixture
def checked(monkeypatch):
    """Checks one scheme alone, which takes a sixth of the time."""

    def of(scheme: str):
        monkeypatch.setattr(cpu, "SERVING", {scheme: cpu.SERVING[scheme]})
        (found,) = check_operators(CPU)
        return found

    return of


def test_every_scheme_of_this_cpu_passes():
    result = CliRunner().invoke(app, ["kernels", "cpu", "--check", "--json"])
    said = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [one["scheme"] for one in said["checked"]] == [one.name for one in SCHEMES.values() if one.quantized]
    assert all(one["problems"] == [] and 0 < one["product_error"] < 0.004 for one in said["checked"])
    assert [173, 90] in said["checked"][0]["shapes"]


def test_without_check_nothing_more_is_done():
    assert "checked" not in json.loads(CliRunner().invoke(app, ["kernels", "cpu", "--json"]).stdout)


def test_what_libraries_log_does_not_come_between_the_json(monkeypatch):
    """As vLLM does: its handler keeps what is stdout at its import."""

    def logging_check(device):
        print("printed")
        logging.StreamHandler(sys.stdout).emit(logging.makeLogRecord({"msg": "logged"}))
        return []

    monkeypatch.setattr(operators, "check_operators", logging_check)
    result = CliRunner().invoke(app, ["kernels", "cpu", "--check", "--json"])
    assert json.loads(result.stdout)["checked"] == []
    assert result.stderr == "printed\nlogged\n"


def test_npus_are_sent_to_their_own_test():
    result = CliRunner().invoke(app, ["kernels", "npu", "--check"])
    assert result.exit_code == 2 and "./run.sh test npu-smoke" in result.stderr


def test_a_product_that_is_wrong(monkeypatch, checked):
    right = cpu.SERVING["int8"]
    wrong = right._replace(linear=lambda x, codes, scale, bias: right.linear(x, codes, scale, bias) * 1.01)
    monkeypatch.setitem(cpu.SERVING, "int8", wrong)
    assert has_line_naming(checked("int8").problems[0], "products") and " 0.01" in checked("int8").problems[0]
    result = CliRunner().invoke(app, ["kernels", "cpu", "--check"])
    assert result.exit_code == 1 and "int8: 4 shapes" in result.stdout and "off by" in result.stdout


def test_a_product_that_is_not_a_number(monkeypatch, checked):
    right = cpu.SERVING["int8"]
    broken = right._replace(linear=lambda x, *rest: right.linear(x, *rest) * float("nan"))
    monkeypatch.setitem(cpu.SERVING, "int8", broken)
    (problem,) = checked("int8").problems
    assert has_line_naming(problem, "products", "nan", "0.006")


def test_codes_that_are_wrong_after_they_were_counted(monkeypatch, checked):
    right = cpu.write

    def wrong(batch, counters, receipt=True):
        right(batch, counters, receipt)
        for job in batch:
            for move, _, _ in job.each():
                if move.place is None:
                    move.target_NK.view(torch.int8)[0, 0] ^= 1

    monkeypatch.setattr(cpu, "write", wrong)
    problems = checked("int8").problems
    assert any("448 x 512: 2 of 229376 codes differ" in one for one in problems)  # a shard's first, of two shards
    assert any("read back" in one for one in problems)
    assert not any("written" in one for one in problems)


def test_values_for_training_that_are_wrong(monkeypatch, checked):
    monkeypatch.setattr(cpu, "fake_quantize", lambda w, scheme: w)
    assert any("dequantized values differ" in one for one in checked("int4_g32").problems)


def test_a_scheme_that_the_device_refuses(monkeypatch, checked):
    right = cpu.storage

    def storage(scheme, shape):
        if scheme.codes == "fp8":
            raise ValueError("this GPU has no FP8")
        return right(scheme, shape)

    monkeypatch.setattr(cpu, "storage", storage)
    found = checked("fp8")
    assert found.refused == "this GPU has no FP8" and not found.problems
    assert "fp8: not here" in CliRunner().invoke(app, ["kernels", "cpu", "--check"]).stdout


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
    monkeypatch.setattr(libraries, "find_spec", lambda package: spec if package == "vllm" else None)
    assert libraries.missing_libraries() == {"vllm/_C.abi3.so": ["libgone.so"]} and loaded.there() == 1
    result = CliRunner().invoke(app, ["kernels", "cpu"])
    assert result.exit_code == 0 and "vllm/_C.abi3.so needs libgone.so" in result.stderr


def compiled(file: Path, source: str, *options: str) -> None:
    """A shared object with a name of its own, as libraries have."""
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(file), f"-Wl,-soname,{file.name}", *options]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)


@pytest.fixture
def sent() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"q.weight": (6, 32), "k.weight": (2, 32), "norm.weight": (32,), "head.weight": (5, 32)}
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}


def test_the_expected_digest_is_what_a_refit_of_the_same_values_gives(sent, tmp_path):
    """Through kernels and residents on one side, from the file by the oracle on the other; a vocabulary is padded."""
    qk = QuantizedWeight("qk.weight", torch.zeros(8, 32, dtype=torch.int8), torch.zeros(8, 1), 32)
    norm = ResidentWeight("norm.weight", torch.zeros(32, dtype=torch.bfloat16))
    head = ResidentWeight("head.weight", torch.zeros(8, 32, dtype=torch.bfloat16), padded=True)
    refit = Refit([qk, norm, head])
    with refit.session():
        for name, resident, view in (
            ("q.weight", qk, qk.data[:6]),
            ("k.weight", qk, qk.data[6:]),
            ("norm.weight", norm, norm.data),
            ("head.weight", head, head.data[:5]),
        ):
            slot = refit.batch.new_sources([(name, sent[name].numel())])
            refit.write(slot, resident, view, sent[name])
        head.fill(head.data[5:], 0, slot)
    save_file(sent, tmp_path / "model.safetensors")
    parts = {"qk.weight": ["q.weight", "k.weight"]}
    parameters = [
        expected.Parameter(one.name, parts.get(one.name, [one.name]), one.weight, bool(one.codes), "bfloat16")
        for one in refit.residents
    ]
    assert expected.digest(parameters, expected.reader(tmp_path), SCHEMES["int8"]) == refit.last_receipt.digest
    swapped = expected.Parameter("qk.weight", ["k.weight", "q.weight"], qk.weight, True, "bfloat16")
    other = expected.digest([swapped, *parameters[1:]], sent.__getitem__, SCHEMES["int8"])
    assert other != refit.last_receipt.digest


def test_a_checkpoint_in_several_files(sent, tmp_path):
    files = {"q.weight": "a.safetensors", "k.weight": "b.safetensors"}
    for name, file in files.items():
        save_file({name: sent[name]}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    read = expected.reader(tmp_path)
    assert all(torch.equal(read(name), sent[name]) for name in files)


def test_plain_values_are_digested_in_the_engine_s_dtype(sent):
    wide = expected.Parameter("norm.weight", ["norm.weight"], 1, False, "float32")
    assert (
        expected.digest([wide], sent.__getitem__, SCHEMES["int8"])
        == f"{oracle.digest(sent['norm.weight'].float()):016x}"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "."], "a: "),
        ([".", "cut"], "cut/model.safetensors"),
        *(([".", name], "vocab_size") for name in ("none", "zero", "text")),
        ([".", "list"], "list/config.json"),
        ([".", ".", "--out", "missing/a.json"], "there is no folder"),
        ([".", ".", "--out", "/"], "--out /"),
        ([".", ".", "--out", "x" * 300], "--out 'xxx"),
        *(([".", ".", "--gpu-memory-utilization", value], value) for value in ("7.0", "nan", "0.0")),
        ([".", ".", "--expert-parallel"], "--tensor-parallel-size"),
    ],
)
def test_wrong_use_of_check_engine(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    configs = {".": '{"vocab_size": 9}', "cut": '{"vocab_size": 9}', "none": "{}", "zero": '{"vocab_size": 0}'}
    for folder, config in (configs | {"text": '{"vocab_size": "9"}', "list": "[]"}).items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "config.json").write_text(config)
        save_file({"a": torch.ones(3)}, tmp_path / folder / "model.safetensors")
    cut = tmp_path / "cut" / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:20])
    result = CliRunner().invoke(app, ["check-engine", *arguments])
    assert result.exit_code == 2 and said in result.stderr and len(result.stderr.splitlines()) == 1


def test_an_engine_that_fails_is_a_line(tmp_path, monkeypatch):
    from ascend_quant.selfcheck import engine

    def fails(*arguments):
        raise RuntimeError("1 missing from this refit:\n" + "model.norm.weight, " * 999)

    (tmp_path / "config.json").write_text('{"vocab_size": 9}')
    save_file({"a": torch.ones(3)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(engine, "check_engine", fails)
    result = CliRunner().invoke(app, ["check-engine", str(tmp_path), str(tmp_path)])
    assert result.exit_code == 1 and "refit: model.norm.weight" in result.stderr
    assert len(result.stderr.splitlines()) == 1 and len(result.stderr) < 2000


def receipt(digest: str, number: int = 2) -> dict:
    return {"digest": digest, "read_back": digest, "number": number}


def test_digests_that_are_not_the_oracle_s():
    from ascend_quant.selfcheck.engine import refit_problems

    right = receipt("b"), receipt("b")
    assert refit_problems(receipt("a", 1), *right, "b") == []
    assert has_line_naming(refit_problems(receipt("a", 1), receipt("c"), right[1], "b")[0], "receipt's: c", "oracle b")
    (problem,) = refit_problems(receipt("a", 1), receipt("b") | {"read_back": "c"}, right[1], "b")
    assert "read back: c" in problem
    assert "fresh engine's: d" in refit_problems(receipt("a", 1), right[0], receipt("d"), "b")[0]
    assert [has_line_naming(one, "no refit") for one in refit_problems(receipt("a", 2), *right, "b")] == [True]
    assert "nothing was tried" in refit_problems(receipt("b", 1), *right, "b")[0]


def test_ranks_are_each_compared_with_the_fresh_engine_s():
    from ascend_quant.selfcheck.engine import rank_problems

    first, right = [receipt("a", 1), receipt("b", 1)], [receipt("c"), receipt("d")]
    assert rank_problems(first, right, right) == []
    (problem,) = rank_problems(first, [right[0], receipt("d") | {"read_back": "e"}], right)
    assert has_line_naming(problem, "rank 1", "read back: e", "fresh engine's d")
    swapped = rank_problems(first, right[::-1], right)
    assert {one[:6] for one in swapped} == {"rank 0", "rank 1"} and len(swapped) == 4


def test_tokens_that_are_not_the_fresh_engine_s():
    from ascend_quant.selfcheck.engine import TOKENS, token_problems

    right = [list(range(TOKENS))]
    assert token_problems(right, right) == []
    other = [[*range(TOKENS - 1), 99]]
    assert token_problems(other, right) == ["prompt 1: token 32 is 99, the fresh engine's 31"]
    assert "2 and 32 tokens where 32" in token_problems([[1, 2]], right)[0]
