"""`run.sh smoke --read`: what a JSON of the smoke test proves, refutes and leaves open, and how both pages then say it.

The results are those of the real judges and of `carry_out`, on what a device would have shown them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from naming import has_line_naming
from smoke_cases import LIVED, logged
from typer.testing import CliRunner

from ascend_quant.smoke import claims, collective, judging, life
from ascend_quant.smoke.npu import speed
from ascend_quant.smoke.npu.data import SEVEN_B_OF_4
from ascend_quant.smoke.probes import NotPossible, On, Probe, Seen, carry_out, probes_for
from ascend_quant.smoke.results import OK, Result, as_text, document
from launch import generated
from launch.child import Ended
from launch.commands import app
from launch.doctor.facts import Device, Devices
from launch.smoke import parts, reading, training
from launch.smoke import setting as shared
from launch.smoke import twins as of_twins
from launch.smoke.setting import Setting

CPU = On(torch.device("cpu"))
FUSED = judging.FUSED
KERNELS = [{"name": "DynamicQuant", "calls": 4, "us": 60.0, "on": "AI_VECTOR_CORE"}]
TIMED, STEPS = of_twins.MEASURED, of_twins.STEPS
WAIT = "called a synchronizing NPU operation"


def turns(grown: int = 0) -> list[dict]:
    """Of twenty cycles, after the third of which as many bytes are lost in each."""
    free = [60 << 30] * 3 + [(60 << 30) - grown * number for number in range(1, 18)]
    return [
        {"digest": "ab"[number % 2], "answers": [[number % 2]], "free asleep": bytes_, "free awake": bytes_}
        for number, bytes_ in enumerate(free)
    ]


def slept(**changes) -> Seen:
    seen = Seen(LIVED | changes)
    life.judge(seen)
    return seen


def rates(*found: float, weights: int = 15 << 30) -> Seen:
    by_batch = dict(zip(judging.BATCHES, found, strict=True))
    return Seen({"tokens/s by batch": by_batch, "bytes of weights": weights})


def layers(faster: float = 1.3) -> Seen:
    took = {"bf16": 13.0 * faster, "int8": 13.0}
    return Seen({f"{n} x {k}, 64 tokens, us": took for n, k in SEVEN_B_OF_4})


def refits(reserved: int = 512, apart: int = 0) -> Seen:
    grown = ["linear NZ: 512 bytes were reserved after a refit, more after 4"] * (reserved > 512)
    seen = Seen({"linear NZ: bytes reserved after one refit and after 4": [512, reserved]}, grown)
    seen.values["linear NZ: replays apart"] = apart
    return seen


def shown() -> dict[str, Seen]:
    """What a device on which all is well shows to the probes that say more than that all is well."""
    return {
        "versions": Seen({"device": "Ascend910B3", "devices": 8, "vllm-ascend": "0.23.0"}),
        "ipc": Seen({"ipc": True}),
        "operators.rounding": Seen({"codes by": FUSED}),
        "operators.refits": refits(),
        "speed.refit": Seen({"28 layers of 7B, copies": 4.3, "28 layers of 7B, ms": 120.0}),
        "speed.refit_calls": speed.judged(FUSED, KERNELS, [WAIT, "another warning"]),
        "speed.linear": layers(),
        "engine.sleep": slept(),
        "engine.cycles": life.judge_cycles(turns(), ["a", "b"]),
        "speed.bf16": rates(180, 1200, 2900),
        "speed.int8": rates(240, 1500, 3100, weights=8 << 30),
        "speed.w8a8": rates(245, 1510, 3120, weights=8 << 30),
        "speed.bf16_4": rates(300, 2000, 5000),
        "speed.int8_4": rates(330, 2300, 5200),
        "collective.broadcast": collective.judged(
            {0: {"seconds": 0.2, "apart": 0}, 1: {"seconds": 0.2, "apart": 0}}, 9
        ),
    }


def trained(folder: Path, said: str) -> list[Result]:
    (folder / "metrics.jsonl").write_text("".join(logged(step) for step in (1, 2, 3)))
    ended = Ended(1, 60.0, folder / "train.log")
    ended.log.write_text(said)
    setting = Setting("ascend-cann9.1", "npu", folder, 3)
    steps = training.judged(setting, ended, folder / "metrics.jsonl")
    return [steps, training.refused(setting, ended, steps)]


def twins(folder: Path, devices: int, seconds: float) -> list[Result]:
    """Of runs whose steps take 20 s with BF16; on fewer devices of none."""

    def ran(command, at, name, *rest) -> Ended:
        (metrics := at / name / "metrics-0" / "run.jsonl").parent.mkdir(parents=True, exist_ok=True)
        steps = 20.0 - seconds if name == "twins.int8" else 20.0
        timed = {f"timing_s/{one}": steps for one in TIMED.values()}
        metrics.write_text("".join(logged(step, **timed) for step in range(1, STEPS + 1)))
        return Ended(0, 100.0, at / "log")

    there = Devices("npu-smi", found=tuple(Device(number, "910B3", "OK", 0, 65536) for number in range(devices)))
    setting = Setting("ascend-cann9.1", "npu", folder, 3, model=folder, data=folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(of_twins, "devices_of", lambda devices: there)
        patched.setattr(shared, "run", ran)
        return [of_twins.twin(setting, name) for name in of_twins.RECIPES]


@pytest.fixture
def a_run(tmp_path) -> Callable[..., Path]:
    """Writes the JSON of a run on an NPU; what a probe shows may be otherwise, be raised, or be None: not run."""

    def write(name: str = "smoke.json", devices: int = 8, **changes: Any) -> Path:
        given = shown() | {key.replace("__", "."): value for key, value in changes.items()}

        def run(one: Probe) -> Seen:
            if lacking := one.lacks(devices):
                raise NotPossible(lacking)
            found = given.get(one.name, Seen())
            if isinstance(found, Exception):
                raise found
            return found

        said = f"RefitError: weight sync failed: {life.NAN}: 1 of 9 elements are NaN or Inf\n"
        found = trained(tmp_path, said)
        found += twins(tmp_path, devices, given.get("twins", 1.0))
        for one in probes_for("npu"):
            if given.get(one.name, one) is not None:
                on_cpu = Probe(one.name, one.decides, lambda on, one=one: run(one), ("npu",), one.slow, 60)
                found.append(carry_out(on_cpu, CPU))
        setting = Setting("ascend-cann9.1", "npu", tmp_path, 3)
        about = parts.about_of(setting) | {"started": "2027-01-05T08:00:00+00:00", "seconds": 3000.0, "left": []}
        (tmp_path / name).write_text(as_text(document(found, about)))
        return tmp_path / name

    return write


def told(*files: Path) -> tuple[int, dict[str, list[str]]]:
    """The exit status, and the claims' probes by verdict."""
    words = [word for file in files for word in ("--read", str(file))]
    done = CliRunner().invoke(app, ["smoke", *words, "--json"])
    found: dict[str, list[str]] = {"proved": [], "refuted": [], "open": []}
    for one in json.loads(done.stdout)["claims"]:
        found[one["verdict"]].append(one["probes"][0])
    return done.exit_code, found


def test_a_good_run_proves_every_claim(a_run):
    code, found = told(a_run())
    assert code == 0 and len(found["proved"]) == len(claims.CLAIMS)


def test_every_claim_names_what_there_is():
    there = {one.name for one in probes_for("npu")} | set(parts.ALONE["npu"])
    assert {name for one in claims.CLAIMS for name in one.probes} <= there


def test_on_one_device_the_claims_of_several_are_open_until_a_second_file(a_run):
    of_one = a_run("one.json", devices=1)
    code, found = told(of_one)
    of_several = {"engine.ranks", "engine.experts", "collective.broadcast", "speed.int8_4", "twins.int8"}
    assert code == 3 and set(found["open"]) == of_several and not found["refuted"]
    nothing_else = dict.fromkeys((name.replace(".", "__") for name in shown() if name not in of_several), None)
    several = a_run("several.json", **nothing_else | {"speed__bf16_4": rates(1, 1, 1)})
    assert told(of_one, several)[0] == 0


def test_a_run_without_ipc(a_run):
    code, found = told(a_run(ipc=Seen({"ipc": False})))
    assert code == 1 and found["refuted"] == ["ipc"] and not found["open"]
    code, found = told(a_run(ipc=RuntimeError("npu-smi info -t board -i 1: exit status 215")))
    assert code == 3 and found["open"] == ["ipc"], "an error tells nothing of the claim"


def test_a_run_that_ended_at_minute_20(a_run):
    """Operators and training are there; no engine."""
    slow = {one.name for one in probes_for("npu") if one.slow}
    code, found = told(a_run(**{name.replace(".", "__"): None for name in slow}))
    assert code == 3 and set(found["open"]) == {one.probes[0] for one in claims.CLAIMS if slow & set(one.probes)}
    assert "train" in found["proved"] and "operators.codes" in found["proved"]


def test_int8_that_is_slower_than_bf16(a_run):
    code, found = told(a_run(speed__int8=rates(240, 1500, 2700, weights=8 << 30)))
    refuted = [one for one in claims.CLAIMS if one.probes == ("speed.int8", "speed.bf16")][2]
    assert code == 1 and "256" in refuted.says
    assert found["refuted"] == ["speed.int8", "speed.int8"], "batch 256, and beside vllm-ascend's own"


WRONG = {
    "operators.rounding": Seen({"codes by": "codes_plain"}),
    "operators.rounding ": Seen({"codes by": FUSED}, ["codes: 3 of 260096 differ"]),
    "operators.codes": Seen({}, ["[96, 64] NZ: codes: 3 of 6144 differ"]),
    "operators.not_finite": Seen({}, ["counted {}"]),
    "operators.products": Seen({}, ["off by 3 units"]),
    "operators.c8": Seen({}, ["off by 0.1"]),
    "operators.refits": refits(reserved=1024, apart=1),
    "speed.refit": Seen({"28 layers of 7B, copies": 7.5, "28 layers of 7B, ms": 210.0}),
    "speed.refit_calls": speed.judged(FUSED, [KERNELS[0] | {"on": speed.AI_CPU}], [WAIT] * 3),
    "speed.linear": layers(0.9),
    "engine.graphs": Seen({}, ["digest the receipt's: c"]),
    "engine.sleep": slept(**{"same answers": False}),
    "engine.cycles": life.judge_cycles(turns(grown=32 << 20), ["a", "b"]),
    "speed.w8a8": rates(300, 1800, 3600),
    "collective.broadcast": collective.judged({0: {"seconds": 1, "apart": 0}, 1: {"seconds": 1, "apart": 7}}, 9),
    "engine.ranks": Seen({}, ["rank 1: digest"]),
    "engine.experts": Seen({}, ["rank 3: digest"]),
    "speed.int8_4": rates(330, 1900, 5200),
}


def test_a_step_that_takes_longer_than_its_twin(a_run):
    code, found = told(a_run(twins=-1.0))
    assert code == 1 and found["refuted"] == ["twins.int8"]


@pytest.mark.parametrize("name", WRONG)
def test_what_a_probe_saw_to_be_wrong_refutes_its_claims_and_no_other(a_run, name):
    name, wrong = name.strip(), WRONG[name]
    code, found = told(a_run(**{name.replace(".", "__"): wrong}))
    of_it = [one.probes[0] for one in claims.CLAIMS if name in one.probes]
    assert code == 1 and found["refuted"] == of_it and not found["open"]


@pytest.mark.parametrize(
    ("name", "seen", "says"),
    [
        ("operators.refits", refits(reserved=1024), "memory"),
        ("operators.refits", refits(apart=2), "captured"),
        ("engine.sleep", slept(**{"sleep level 2": ""}), ""),  # not refused, of which no claim speaks
        ("engine.sleep", slept(**{"a NaN": "", "served meanwhile": True}), ""),
    ],
)
def test_a_probe_s_other_fault_does_not_refute_a_claim(a_run, name, seen, says):
    code, _ = told(file := a_run(**{name.replace(".", "__"): seen}))
    refuted = [one.claim.says for one in reading.verdicts([reading.read(file)]) if one.verdict == judging.REFUTED]
    assert code == len(refuted) == bool(says) and all(says in one for one in refuted)


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("speed.refit", Seen({"28 layers of 7B, copies": float("nan"), "28 layers of 7B, ms": float("nan")})),
        ("speed.int8", rates(float("nan"), 1500, 3100, weights=8 << 30)),
        ("speed.bf16", rates(0, 1200, 2900)),
    ],
)
def test_what_is_no_number_decides_nothing(a_run, name, seen):
    code, found = told(a_run(**{name.replace(".", "__"): seen}))
    assert code == 3 and found["open"] and not found["refuted"]


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("operators.refits", Seen({"no graphs": "not supported"})),  # of which the other claim lacks its bytes
        ("speed.refit_calls", speed.judged("codes_plain", KERNELS, [WAIT] * 9)),
        ("speed.refit_calls", speed.judged(FUSED, KERNELS, [])),  # a refit waits once: nothing is counted here
        ("speed.refit", Seen({"3 layers of 7B, copies": 4.0})),  # of too few layers for the time
    ],
)
def test_what_was_not_seen_leaves_a_claim_open(a_run, name, seen):
    code, found = told(a_run(**{name.replace(".", "__"): seen}))
    assert code == 3 and set(found["open"]) == {name} and not found["refuted"]


def test_both_pages_say_what_was_read(a_run, tmp_path):
    (tmp_path / "docs").mkdir()
    for name in reading.PAGES:
        (tmp_path / name).write_text((reading.ROOT / name).read_text())
    files = [reading.read(a_run(speed__int8=rates(240, 1500, 2700, weights=8 << 30), engine__graphs=None))]
    for page, text in reading.pages(files, tmp_path).items():
        words = reading.PAGES[str(page.relative_to(tmp_path))]
        rows = [line for line in text.splitlines() if line.startswith("| ") and " | `" in line]
        assert len(rows) == len(claims.CLAIMS)
        refuted = [row for row in rows if words.verdicts["refuted"] in row]
        assert len(refuted) == 2 and "0.93" in refuted[0]
        assert [words.verdicts["open"] in row for row in rows].count(True) == 1
        assert "Ascend910B3" in text and "2027-01-05" in text and words.nothing not in text
        page.write_text(text)
    unwritten = reading.pages([], tmp_path)
    assert all(words.nothing in text for words, text in zip(reading.PAGES.values(), unwritten.values(), strict=True))


@pytest.mark.parametrize("name", reading.PAGES)
def test_a_page_has_every_claim_and_no_verdict_of_its_own(name):
    words, english = reading.PAGES[name], name == "docs/ascend.md"
    section = (reading.ROOT / name).read_text().split(generated.mark(reading.COMMAND))[1]
    section = section.split(generated.END)[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if " | `" in line]
    assert [row[0] for row in rows] == [one.says if english else one.says_zh for one in claims.CLAIMS]
    known = {*words.verdicts.values(), words.not_run}
    assert {row[2].split(":")[0] for row in rows} <= known
    if words.nothing in section:
        assert section == reading.table(words, [])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "JSONDecodeError"),
        ("{}", "KeyError"),
        (as_text(document([Result("train", "", OK)], {"device": "npu"}) | {"schema": 1}), "schema 1"),
        (as_text(document([Result("train", "", OK)], {"device": "cuda"})), "cuda"),
        (as_text(document([Result("train", "", OK)], {"device": "npu"})), "stack"),  # by ascend-quant smoke
        (as_text(document([], {"device": "npu"}) | {"probes": [{"name": "train", "status": "ok", "of": 1}]}), "of"),
    ],
)
def test_files_that_say_nothing_of_npus(tmp_path, text, named):
    (tmp_path / "a.json").write_text(text)
    done = CliRunner().invoke(app, ["smoke", "--read", str(tmp_path / "a.json")])
    assert done.exit_code == 2 and has_line_naming(done.stderr, "a.json", named)


def test_the_command_writes_both_pages_and_unwrites_them(a_run, tmp_path, monkeypatch):
    copies = {tmp_path / name: (reading.ROOT / name).read_text() for name in reading.PAGES}
    monkeypatch.setattr(reading, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    for page, text in copies.items():
        page.write_text(text)
    assert CliRunner().invoke(app, ["smoke", "--read", str(a_run()), "--write"]).exit_code == 0
    assert all("Ascend910B3" in page.read_text() for page in copies)
    assert CliRunner().invoke(app, ["smoke", "--write"]).exit_code == 0
    for page, words in zip(copies, reading.PAGES.values(), strict=True):
        assert words.nothing in page.read_text() and page.read_text().count(words.not_run) >= len(claims.CLAIMS)
        page.unlink()
    done = CliRunner().invoke(app, ["smoke", "--write"])
    assert done.exit_code == 2 and has_line_naming(done.stderr, "--write", "docs/ascend.md")
