"""`ascend-quant smoke --read`: what JSON files say of each probe, and what both pages of NPUs then say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from naming import has_line_naming
from typer.testing import CliRunner

from ascend_quant.commands.app import app
from ascend_quant.smoke import parts, reading
from ascend_quant.smoke.probes import probes_for
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result, as_text, document
from ascend_quant.smoke.setting import Setting
from launch import ROOT, LaunchError
from tools.pages import npu_probes, sections

NAMES = ["train", "train.nan", *(one.name for one in probes_for("npu"))]
OF_SEVERAL = {one.name for one in probes_for("npu") if one.ranks > 1}


def rates(*found: float, weights: int = 15 << 30) -> dict[str, Any]:
    by_batch = dict(zip(("8", "64", "256"), found, strict=True))
    return {"start, s": 31.5, "tokens/s by batch": by_batch, "bytes of weights": weights}


SEEN = {
    "versions": {"device": "Ascend910B3", "devices": 8, "vllm-ascend": "0.23.0"},
    "ipc": {"ipc": True},
    "speed.bf16": rates(200, 1000, 3000),
    "speed.int8": rates(300, 1250, 2700, weights=9 << 30),
    "speed.w8a8": rates(240, 1250, 3000, weights=9 << 30),
}


@pytest.fixture
def a_run(tmp_path) -> Callable[..., Path]:
    """Writes the JSON of a run on an NPU; a probe's result may be otherwise, or None: not run."""

    def write(name: str = "smoke.json", **changes: Result | None) -> Path:
        results = {one: Result(one, "", OK, values=SEEN.get(one, {})) for one in NAMES}
        results |= {key.replace("__", "."): value for key, value in changes.items()}
        setting = Setting("ascend-cann9.1", tmp_path, 3)
        about = parts.about_of(setting) | {"started": "2027-01-05T08:00:00+00:00", "seconds": 3000.0, "left": []}
        (tmp_path / name).write_text(as_text(document([one for one in results.values() if one], about)))
        return tmp_path / name

    return write


def told(*files: Path) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit status, and what is said of each probe."""
    words = [word for file in files for word in ("--read", str(file))]
    done = CliRunner().invoke(app, ["smoke", *words, "--json"])
    return done.exit_code, {one["name"]: (one["status"], one["seen"]) for one in json.loads(done.stdout)["probes"]}


def test_every_probe_of_npus_has_its_line_and_int8_is_beside_bf16_and_the_vendor_s(a_run):
    code, found = told(a_run())
    assert code == 0 and list(found) == NAMES and {status for status, _ in found.values()} == {OK}
    assert found["ipc"] == (OK, "ipc True")
    assert has_line_naming(found["speed.int8"][1], "speed.bf16", "1.50 at 8", "1.25 at 64", "0.90 at 256", "bytes 0.60")
    assert has_line_naming(found["speed.int8"][1], "speed.w8a8", "1.25 at 8", "1.00 at 64", "0.90 at 256", "bytes 1.00")
    assert "times" not in found["speed.bf16"][1] + found["speed.int8_4"][1]


def test_what_has_not_run_is_open_until_a_second_file_and_a_failure_is_not_hidden_by_one(a_run):
    lacking = {name.replace(".", "__"): Result(name, "", NOT_APPLICABLE, reason="4 devices") for name in OF_SEVERAL}
    of_one = a_run("one.json", **lacking, engine__sleep=None)
    code, found = told(of_one)
    assert code == 3 and found["engine.sleep"] == (reading.NOT_RUN, "")
    assert all(found[name] == (NOT_APPLICABLE, "4 devices") for name in OF_SEVERAL)
    assert told(of_one, a_run("several.json"))[0] == 0
    failed = a_run("failed.json", operators__codes=Result("operators.codes", "", FAILED, reason="3 of 6144 differ"))
    for files in ((failed, of_one), (of_one, failed)):
        code, found = told(*files)
        assert code == 1 and found["operators.codes"] == (FAILED, "3 of 6144 differ")


def test_both_pages_say_what_was_read_and_are_unwritten(a_run, tmp_path):
    for page in npu_probes.PAGES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text((ROOT / page).read_text())
    npu_probes.main([str(a_run(train=None))], tmp_path)
    for page in npu_probes.PAGES:
        text = (tmp_path / page).read_text()
        rows = [line for line in text.splitlines() if line.startswith(tuple(f"| `{one}`" for one in NAMES))]
        assert f"| `train` | {reading.NOT_RUN} |  |" in rows and "1.50 at 8" in "".join(rows)
        assert "Ascend910B3" in text and "2027-01-05" in text
    npu_probes.main([], tmp_path)
    for page in npu_probes.PAGES:
        assert (tmp_path / page).read_text().count(reading.NOT_RUN) >= len(NAMES)
        (tmp_path / page).unlink()
    with pytest.raises(LaunchError, match=r"docs/ascend\.md"):
        npu_probes.main([], tmp_path)


@pytest.mark.parametrize("page", npu_probes.PAGES)
def test_a_page_has_every_probe_and_no_verdict_of_its_own(page):
    section = (ROOT / page).read_text().split(sections.mark(npu_probes.COMMAND))[1].split(sections.END)[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert [row[0].strip("`") for row in rows] == NAMES
    if npu_probes.PAGES[page][1] in section:
        assert section == npu_probes.table(page, [])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "line 1"),
        ("{}", "KeyError"),
        (as_text(document([Result("train", "", OK)], {"device": "npu"}) | {"schema": 1}), "schema 1"),
        (as_text(document([Result("train", "", OK)], {"device": "cuda"})), "cuda"),
        (as_text(document([Result("train", "", OK)], {"device": "npu"})), "stack"),  # of another origin
        (as_text(document([], {"device": "npu"}) | {"probes": [{"name": "train", "status": "ok", "of": 1}]}), "of"),
    ],
)
def test_files_that_say_nothing_of_npus(tmp_path, text, named):
    (tmp_path / "a.json").write_text(text)
    done = CliRunner().invoke(app, ["smoke", "--read", str(tmp_path / "a.json")])
    assert done.exit_code == 2 and has_line_naming(done.stderr, "a.json", named)
