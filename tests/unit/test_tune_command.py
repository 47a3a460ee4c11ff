"""benchmarks/tune with times that are made up: what it chooses, keeps, leaves out, and how it ends."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from command_runs import runner
from naming import has_line_naming

from ascend_quant.kernels import tuned
from ascend_quant.kernels.tuned import Tiles
from benchmarks.tune import search as tuning
from benchmarks.tune.command import tune

CUTLASS = {"by": "cutlass"}
SLOW, FAST = ({"by": "triton", **Tiles(64, 64, 128, 1, 4, stages)._asdict()} for stages in (3, 4))
OURS = FAST | {"pdl": True}  # the variant that is tried of a good choice
IDLE = 1e-6
JOB = tuning.Job("linear", (64, 32), 16)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A GPU with a kind of products whose times, mistakes and clock a test sets."""
    kind = ModuleType("fake_kind")
    kind.times = {"cutlass": 9e-6, 3: 8e-6, 4: 5e-6, "pdl": 4e-6}
    kind.mistakes, kind.refused, kind.clock, kind.measured = (), (), 0.0, []
    kind.SHAPES = [(64, 32), (32, 96)]

    def name(choice):
        return "cutlass" if choice == CUTLASS else "pdl" if choice["pdl"] else choice["stages"]

    def seconds(call, choice, copies, replays, at_least):
        kind.clock += 1.0
        if choice is None:
            return IDLE
        if name(choice) in kind.refused:
            raise RuntimeError("out of resources")
        kind.measured.append((call, name(choice), copies, at_least))
        return IDLE + kind.times[name(choice)]

    kind.candidates = lambda shape, rows, capability, processors: [CUTLASS, SLOW, FAST]
    kind.refined = lambda choice, capability: [OURS] if choice == FAST else []
    kind.compiled = lambda choice: name(choice)
    kind.prepare = lambda shape, rows, copies: (shape, rows)
    kind.wrong = lambda call, choice: "other bits" if name(choice) in kind.mistakes else None
    kind.copy_bytes = lambda shape: 100_000_000
    kind.floor = lambda shape, rows, gpu: 2e-6
    monkeypatch.setitem(sys.modules, "fake_kind", kind)
    monkeypatch.setattr(tuning, "MODULES", {"linear": "fake_kind"})
    monkeypatch.setattr(tuning, "seconds", seconds)
    monkeypatch.setattr(tuning, "warm", lambda wanted, limit: (None for _ in wanted))
    monkeypatch.setattr("time.monotonic", lambda: kind.clock)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA Test")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=1))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    kind.file = tuned.user_file("NVIDIA_Test")
    return kind


def run(*words, status=0):
    result = runner(tune)(*words)
    assert result.exit_code == status, result.output
    return result


def linear(fake):
    return tuned.load(fake.file)["linear"]


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run(status=2)
    assert result.stderr.count("\n") == 1 and "NVIDIA GPU" in result.stderr and not result.stdout


def test_the_fastest_is_kept_with_its_times_and_those_of_vllm(fake):
    one = tuning.measure(JOB, float("inf"))
    assert one.seconds == pytest.approx(4e-6) and one.before == pytest.approx(9e-6)  # without the idle time
    assert one.choice == OURS
    assert fake.measured[0] == (((64, 32), 16), "cutlass", 2, 16)  # weights of more than 160 MB in turn


def test_it_is_written_and_shown_in_a_table(fake):
    result = run("--shape", "64,32", "--batch", "16")
    assert linear(fake) == {(64, 32): {16: OURS}}
    for text in ("linear 64x32", "9.0", "4.0", "50%", "triton", "stages=4", "pdl=1", str(fake.file)):
        assert text in result.stdout


def test_vllms_kernel_stays_unless_another_is_clearly_faster(fake):
    fake.times["pdl"] = fake.times[4] = fake.times[3] = fake.times["cutlass"] - 0.1e-6
    run("--shape", "64,32", "--batch", "16")
    assert linear(fake)[64, 32] == {16: CUTLASS}


def test_what_computes_something_else_or_fails_is_not_chosen(fake):
    fake.mistakes, fake.refused = ("pdl",), (4,)
    fake.refined = lambda choice, capability: [OURS] if choice == SLOW else []
    one = tuning.measure(JOB, float("inf"))
    assert one.choice == SLOW
    assert ["out of resources" in text or "other bits" in text for text in one.problems] == [True, True]


def test_where_nothing_is_right_the_status_is_1_and_the_file_untouched(fake):
    fake.mistakes = ("cutlass", 3, 4, "pdl")
    result = run("--shape", "64,32", "--batch", "16", status=1)
    assert has_line_naming(result.stderr, "linear 64x32:", "no kernel") and "other bits" in result.stderr
    assert not fake.file.exists()


def test_without_shapes_it_is_those_of_the_known_models_for_every_batch(fake):
    run("--batch", "16,64", "--seconds", "1000")
    assert linear(fake) == {(64, 32): {16: OURS, 64: OURS}, (32, 96): {16: OURS, 64: OURS}}


def test_what_is_not_reached_in_time_is_measured_by_the_next_run(fake):
    result = run("--batch", "16", "--seconds", "3", status=3)
    assert "1 not reached" in result.stdout and set(linear(fake)) == {(64, 32)}
    fake.measured.clear()
    result = run("--batch", "16", "--seconds", "1000")
    assert {job for job, *_ in fake.measured} == {((32, 96), 16)} and "1 were known" in result.stdout
    assert set(linear(fake)) == {(64, 32), (32, 96)}


def test_what_is_known_is_measured_again_when_asked(fake):
    run("--shape", "64,32", "--batch", "16")
    fake.times["cutlass"] = 1e-6
    run("--shape", "64,32", "--batch", "16")
    assert linear(fake)[64, 32] == {16: OURS}
    run("--shape", "64,32", "--batch", "16", "--again")
    assert linear(fake)[64, 32] == {16: CUTLASS}


def test_another_file_can_be_written(fake, tmp_path):
    run("--shape", "64,32", "--batch", "16", "--out", str(tmp_path / "mine.json"))
    assert tuned.load(tmp_path / "mine.json")["linear"] and not fake.file.exists()


def test_compiling_may_take_too_long_or_fail(fake, monkeypatch):
    def warm(wanted, limit):
        yield "PTXASError: no"
        raise TimeoutError

    monkeypatch.setattr(tuning, "warm", warm)
    run("--shape", "64,32", "--batch", "16")
    assert linear(fake)[64, 32] == {16: OURS}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--shape", "64"), "'64':"),
        (("--shape", "64,x"), "'64,x':"),
        (("--batch", "16,0"), "'0':"),
        (("--batch", "9" * 5000), "--batch:"),
        (("--shape", f"64,{'9' * 5000}"), "--shape:"),
        (("--out", "/"), "--out"),
    ],
)
def test_wrong_words_are_status_2(fake, words, said):
    assert said in run(*words, status=2).stderr


def test_a_wrong_file_is_not_overwritten(fake):
    fake.file.parent.mkdir(parents=True)
    fake.file.write_text("{}x")
    assert str(fake.file) in run("--shape", "64,32", status=2).stderr and fake.file.read_text() == "{}x"


def test_compiling_goes_on_in_processes_of_their_own_and_errors_come_back():
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("nothing fails to compile here")
    job = tuning.Job("linear", (64, 32), 16)
    said = sorted(tuning.warm([(job, CUTLASS), (job, SLOW)], limit=120, workers=1), key=str)
    assert said[1] is None and "CUDA" in said[0]
