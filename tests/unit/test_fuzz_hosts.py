"""What other programs and other people's files say, in any form: an answer, a finding or the module's own error class.

Texts are real ones with words, lines and bytes changed, and texts of no form at all. Each property is checked on what
comes out, so that an answer is not an answer because nothing was read.
"""

import json
import math
import re
import string
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from data_cases import GSM8K, gsm8k_copy, math_copy, math_row, read, write_lines
from doctor_facts import wanted, well
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from npu_tools import A2_BOARD, A2_TABLE, A3_BOARD, A3_TABLE

from launch import stacks
from launch.data import DataError, prepare
from launch.doctor import gpu, npu
from launch.doctor.checking import Finding
from launch.doctor.examination import CHECKS, attempt, traits
from launch.doctor.facts import Devices, Facts
from launch.doctor.requirements import Wanted
from launch.errors import LaunchError
from launch.images.archive import written_sum
from launch.images.engine import Image, inspected
from launch.programs import Answer

WORDS = [
    *("", "0", "1", "-1", "7" * 12, "7" * 5000, "0x1F", "1e9", "\u0663", "\u00b2", "\t", "\x00", "\ufffd", "\u4e2d"),
    *("NA", "N/A", "[N/A]", "err", "|", ",", "[", "]", "/", "0 / 0", "OK", "Warning", "100 MiB", "UP", "DOWN"),
    *("[GPU requires reset]", "[GPU is lost]", "[Unknown Error]", "[Not Supported]", "[Insufficient Permissions]"),
    *("Process id", "Version:"),
]
GPUS = (
    "0, GPU-aa, NVIDIA H200, 570.133.20, 5, 143771, 0\n"
    "1, GPU-bb, NVIDIA H200, 570.133.20, 70000, 143771, 3\n"
    "2, GPU-cc, NVIDIA A10, 570.133.20, 5, 23028, [N/A]\n"
)
PROCESSES = "GPU-bb, 4711, /usr/bin/python3, 69990\nGPU-cc, 4712, [Not Found], [N/A]\n"
INSPECT = json.dumps(
    [
        {
            "Id": "sha256:1",
            "RepoTags": ["a:b"],
            "Size": 5,
            "RootFS": {"Type": "layers", "Layers": ["sha256:2"]},
            "Config": {"Labels": {"a": "b"}},
        }
    ]
)

printable = st.text(string.printable + "\u4e2d\u0663\ufffd", max_size=60)


@st.composite
def changed(draw, *texts: str) -> str:
    """One of the texts, some of its words, spaces and lines replaced, repeated or left out; or a text of no form."""
    if draw(st.integers(0, 9)) == 0:
        return draw(printable)
    parts = re.split(r"(\n|[|,:/\[\]{}\"]|\s+)", draw(st.sampled_from(texts)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(parts) - 1))
        parts[at] = draw(st.sampled_from(WORDS) | printable | st.just(parts[at] * 2))
    lines = "".join(parts).splitlines(keepends=True)
    return "".join(lines[: draw(st.sampled_from([len(lines), len(lines), len(lines) // 2]))])


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """A file's bytes, some of which were changed, or that end too soon."""
    made = bytearray(content)
    for at in draw(st.lists(st.integers(0, max(len(made) - 1, 0)), max_size=8)):
        made[at : at + 1] = draw(st.binary(max_size=3))
    return bytes(made[: draw(st.sampled_from([len(content), len(content), len(content) // 2, 3, 0])) or None])


def fuzzed(cases: int):
    """So many cases, the same in every run; a case may take as long as a busy machine takes."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=cases, derandomize=True, deadline=None, database=None, suppress_health_check=checks)


@pytest.fixture(autouse=True, scope="module")
def pins_are_read_once():
    """A case would read docker/stacks.yaml some twenty times."""
    with patch.object(stacks, "all_pins", cache(stacks.all_pins)):
        yield


def judged(facts: Facts, run: Wanted) -> list[Finding]:
    """What all checks say of the facts, which is JSON, and of which none is about a check that broke."""
    findings = [finding for check in CHECKS for finding in check(facts, run)]
    assert json.loads(json.dumps([asdict(finding) for finding in findings] + [traits(facts)]))
    assert not [finding for finding in findings if "check itself failed" in finding.what]
    assert all(finding.fix for finding in findings if finding.level != "ok")
    return findings


@fuzzed(40)
@given(changed(GPUS), changed(PROCESSES))
@example("0, {0}, {0}, {0}, {0}, {0}, {0}\n1, {0}, {0}, {0}, {0}, {0}, {0}\n".format("[GPU is lost]"), "")
def test_nvidia_smi(listed: str, processes: str):
    with patch.object(gpu, "ask", side_effect=[Answer(listed), Answer(processes)]):
        found = attempt(gpu.gpus)
    assert_each_sick_one_is_told(found, "cuda13")


@fuzzed(40)
@given(changed(A2_TABLE, A3_TABLE), changed(A2_BOARD, A3_BOARD))
def test_npu_smi(table: str, board: str):
    with TemporaryDirectory() as root, patch.object(npu, "ask", side_effect=[Answer(table), Answer(board)]):
        found = attempt(npu.npus, Path(root))
    assert_each_sick_one_is_told(found, "ascend-cann9.1")


def assert_each_sick_one_is_told(found: Devices | Exception, stack: str) -> None:
    findings = judged(well(stack, devices=found), wanted(stack))
    told = " ".join(finding.what for finding in findings if finding.level != "ok")
    assert isinstance(found, Devices) or "devices could not be looked at" in told
    for device in getattr(found, "found", ()):
        assert device.health == "OK" or f"device {device.number}: {device.health}" in told
        assert device.total_mib is not None or "how much memory" in told


values = st.sampled_from(
    ["", " ", "a", "#### 7", "#### 1.2.3.4", 5, None, True, math.nan, [], ["x"], {}, {"content": 5}, "7" * 99]
)
answers = st.from_regex(r"#### ?[-0-9.,\u0663]{0,5}", fullmatch=True)
gsm8k_rows = st.fixed_dictionaries({}, optional={"question": values, "answer": values | answers})
math_rows = st.fixed_dictionaries(
    {}, optional={"prompt": values | st.lists(values, max_size=2), "reward_model": values, "extra_info": values}
)


def prepared(name: str, source: Path, target: Path) -> dict[Path, list[dict]]:
    """The rows of each file that was made; where it was refused, none, and no half of one."""
    try:
        made = prepare(name, source, target)
    except DataError as error:
        assert len(str(error).splitlines()) == 1
        made = None
    assert not list(target.rglob("*.unfinished"))
    return {} if made is None else {file: read(file) for file in made.rows}


@fuzzed(120)
@given(gsm8k_rows, st.data())
def test_rows_of_gsm8k(row: dict, data):
    content = "".join(f"{json.dumps(one)}\n" for one in (*GSM8K, {**GSM8K[0], **row})).encode()
    with TemporaryDirectory() as folder:
        write_lines(Path(folder, "copy/test.jsonl"), GSM8K)
        Path(folder, "copy/train.jsonl").write_bytes(data.draw(st.just(content) | damaged(content)))
        for made in prepared("gsm8k", Path(folder, "copy"), Path(folder, "data")).values():
            for one in made:
                assert one["extra_info"]["question"].strip()
                assert math.isfinite(float(one["reward_model"]["ground_truth"]))


@fuzzed(60)
@given(st.data())
def test_a_damaged_parquet_file(data):
    with TemporaryDirectory() as folder:
        file = gsm8k_copy(Path(folder, "copy")) / "main/train-00000-of-00001.parquet"
        file.write_bytes(data.draw(damaged(file.read_bytes())))
        for made in prepared("gsm8k", Path(folder, "copy"), Path(folder, "data")).values():
            assert all(isinstance(one["extra_info"]["question"], str) for one in made)


@fuzzed(80)
@given(math_rows, st.dictionaries(st.sampled_from(["role", "content"]), values), values)
def test_rows_of_dapo_math(row: dict, message: dict, answer: object):
    asked = {**math_row("One?", answer), "prompt": [message], **row}
    with TemporaryDirectory() as folder:
        copy = math_copy(Path(folder, "copy"), [math_row("Two?", "3")], [math_row("Three?", "4")])
        (copy / "DAPO-Math-17k/data/dapo-math-17k.parquet").unlink()
        write_lines(copy / "DAPO-Math-17k/data/dapo-math-17k.jsonl", [math_row("Two?", "3"), asked])
        for made in prepared("dapo-math-17k", copy, Path(folder, "data")).values():
            for one in made:
                (prompt,) = one["prompt"]
                assert prompt["content"].strip() and one["reward_model"]["ground_truth"].strip()


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["Id", "RootFS", "Layers", "Config", "Labels", "Size", "RepoTags"]), inner)
    ),
    max_leaves=12,
)


@fuzzed(120)
@given(changed(INSPECT) | trees.map(json.dumps) | trees.map(lambda tree: json.dumps([tree])))
def test_docker_image_inspect(answer: str):
    try:
        found = inspected(answer)
    except LaunchError as error:
        assert len(str(error).splitlines()) == 1
        return
    assert isinstance(found, Image) and isinstance(found.bytes, int)
    assert all(isinstance(text, str) for text in (found.id, *found.layers, *found.names, *found.labels.values()))


@fuzzed(80)
@given(damaged(b"a" * 64 + b"  cpu.tar.zst\n") | st.binary(max_size=80) | st.from_regex(rb"\s?[0-9a-fA-F]{60,66}\s.*"))
def test_files_of_sums(content: bytes):
    with TemporaryDirectory() as folder:
        file = Path(folder, "x.sha256")
        file.write_bytes(content)
        try:
            found = written_sum(file)
        except LaunchError:
            assert not re.match(rb"[0-9a-fA-F]{64}\s", content)
        else:
            assert re.fullmatch("[0-9a-f]{64}", found) and found.encode() in content.lower()
