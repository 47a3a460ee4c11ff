"""Which kernel computes a product: files of choices, the buckets of rows, and what is wrong with a file."""

import json

import pytest
import torch
from naming import has_line_naming

from ascend_quant.kernels import tuned
from ascend_quant.kernels.cuda.serve import linear_choice
from ascend_quant.kernels.tuned import HopperTiles, Tiles
from benchmarks.tune.table import save

HOPPER = {"by": "hopper", **HopperTiles(64, 128, 128, 4, 8)._asdict()}
CUTLASS = {"by": "cutlass"}
TILES = Tiles(64, 128, 128, 4, 4, 4, tma=True)
TRITON = {"by": "triton", **TILES._asdict()}


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU of a model of its own, whose shipped and user's files are in an empty folder."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA Test/1 80GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    properties = type("Properties", (), {"multi_processor_count": 100})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _forget()
    yield tmp_path
    _forget()


def _forget():
    tuned.forget()
    linear_choice.forget()


def test_rows_take_the_smallest_bucket_that_holds_them_or_the_largest(gpu):
    buckets = {rows: TRITON | {"stages": rows} for rows in (16, 64, 256)}
    save(tuned.user_file("NVIDIA_Test_1_80GB"), {"linear": {(4608, 3584): buckets}})
    _forget()
    found = {rows: tuned.find("linear", (4608, 3584), rows)["stages"] for rows in (1, 16, 17, 64, 65, 256, 8192)}
    assert found == {1: 16, 16: 16, 17: 64, 64: 64, 65: 256, 256: 256, 8192: 256}
    assert tuned.find("linear", (4608, 3584), 257, beyond=False) is None
    assert tuned.find("linear", (4608, 3585), 16) is None and tuned.find("experts", (4608, 3584), 16) is None


def test_the_users_file_lies_over_what_is_shipped_bucket_by_bucket(gpu):
    assert tuned.user_file("X") == gpu / "cache/ascend_quant/tuned/X.json"
    save(tuned.SHIPPED / "NVIDIA_Test_1_80GB.json", {"linear": {(32, 64): {16: CUTLASS, 64: CUTLASS}}})
    save(tuned.user_file("NVIDIA_Test_1_80GB"), {"linear": {(32, 64): {64: TRITON}}})
    assert tuned.find("linear", (32, 64), 9) == CUTLASS and tuned.find("linear", (32, 64), 60) == TRITON


def test_saving_keeps_what_the_file_has_and_reads_back_the_same(tmp_path):
    file = tmp_path / "new/folder/gpu.json"
    save(file, {"linear": {(32, 64): {16: TRITON, 64: CUTLASS}}})
    save(file, {"linear": {(32, 64): {64: HOPPER}, (16, 16): {1: CUTLASS}}})
    expected = {"linear": {(32, 64): {16: TRITON, 64: HOPPER}, (16, 16): {1: CUTLASS}}}
    assert tuned.load(file) == expected and [one.name for one in file.parent.iterdir()] == ["gpu.json"]
    assert json.loads(file.read_text())["linear"]["32x64"]["16"] == TRITON


def test_a_choice_of_before_tiles_had_more_tokens_is_read(gpu):
    save(tuned.user_file("NVIDIA_Test_1_80GB"), {"linear": {(32, 64): {64: without(HOPPER, "more")}}})
    assert linear_choice.linear(32, 64, 60, torch.bfloat16) == HopperTiles(64, 128, 128, 4, 8)


def without(choice, name):
    return {key: value for key, value in choice.items() if key != name}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", ""),
        ([], "AttributeError"),
        ({"linaer": {"32x64": {}}}, "KeyError: 'linaer'"),
        ({"linear": {"32": {}}}, "ValueError: 32 is not nxk"),
        ({"linear": {"32x64": {"few": CUTLASS}}}, "ValueError: .*'few'"),
        ({"linear": {"32x64": {"16": {"by": "magic"}}}}, "KeyError: 'magic'"),
        ({"linear": {"32x64": {"16": without(TRITON, "stages")}}}, "TypeError: .*'stages'"),
        ({"linear": {"32x64": {"16": CUTLASS | {"tiles": 2}}}}, "TypeError: .*'tiles'"),
    ],
    ids=str,
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path, content, said):
    file = tmp_path / "gpu.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(tuned.BadTable, match=f"^{file}:? {said}") as error:
        tuned.load(file)
    assert len(str(error.value)) < 1000


def test_a_file_in_another_encoding(tmp_path):
    (tmp_path / "gpu.json").write_bytes('{"é": {}}'.encode("latin-1"))
    with pytest.raises(tuned.BadTable, match=r"gpu\.json"):
        tuned.load(tmp_path / "gpu.json")


def test_all_that_the_tuner_tries_can_be_read_again(tmp_path):
    from benchmarks.tune import experts as tune_experts
    from benchmarks.tune import linear as tune_linear

    for module, kind, shape in ((tune_linear, "linear", (4608, 3584)), (tune_experts, "experts", (128, 768, 2048, 8))):
        for rows in (16, 160, 256, 8192):
            for choice in module.candidates(shape, rows, (9, 0), 132):
                table = {kind: {shape: {rows: choice}}}
                save(file := tmp_path / f"{kind}.json", table)
                assert tuned.load(file) == table
                file.unlink()


def test_no_file_is_no_choice(tmp_path):
    assert tuned.load(tmp_path / "none.json") == {}


def test_shipped_files_are_right():
    for file in tuned.SHIPPED.glob("*.json"):
        assert tuned.load(file)


def test_a_shape_that_was_never_tuned_is_cutlass_where_cutlass_works(gpu):
    assert linear_choice.linear(4608, 3584, 64, torch.bfloat16) is None
    for columns, length, dtype in ((4600, 3584, torch.bfloat16), (4608, 3592, torch.float16), (32, 64, torch.float32)):
        assert isinstance(linear_choice.linear(columns, length, 64, dtype), Tiles)


def test_a_tuned_choice_is_taken_but_not_cutlass_for_what_it_cannot(gpu):
    save(tuned.user_file("NVIDIA_Test_1_80GB"), {"linear": {(32, 64): {16: CUTLASS, 64: TRITON}}})
    assert linear_choice.linear(32, 64, 60, torch.bfloat16) == linear_choice.linear(32, 64, 60, torch.float32) == TILES
    assert linear_choice.linear(32, 64, 16, torch.bfloat16) is None
    assert linear_choice.linear(32, 64, 65, torch.bfloat16) is None  # beyond what was measured
    assert isinstance(linear_choice.linear(32, 64, 16, torch.float32), Tiles)


@pytest.mark.parametrize(("version", "tma"), [("3.3.1", False), ("3.4.0", True), ("3.10.0+git1", True)])
def test_what_an_older_triton_cannot_compile_is_not_taken(gpu, monkeypatch, version, tma):
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "__version__", version)
    without_tma = TRITON | {"tma": False}
    save(tuned.user_file("NVIDIA_Test_1_80GB"), {"linear": {(32, 64): {16: TRITON, 64: without_tma}}})
    assert (linear_choice.linear(32, 64, 16, torch.bfloat16) is not None) is tma
    assert linear_choice.linear(32, 64, 64, torch.bfloat16) == TILES._replace(tma=False)
    hopper = tuned.HopperTiles(64, 128, 128, 4, 8)
    assert linear_choice.takes_tiles(hopper) is (version == "3.10.0+git1")


def test_blackwell_has_tiles_and_the_log_says_so_once(gpu, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (10, 0))
    for rows in (1, 64, 8192):
        assert isinstance(linear_choice.linear(4608, 3584, rows, torch.bfloat16), Tiles)
    for capability in ((10, 0), (9, 0), (10, 0)):
        linear_choice.log_choice(capability)
    (told,) = [record.getMessage() for record in caplog.records]
    assert has_line_naming(told, "capability 10.0", "cutlass", "int8", "Triton")


def test_tiles_by_rule_fill_the_gpu_and_leave_each_program_enough_of_k():
    def split(*shape):
        return linear_choice.tiles_by_rule(*shape, processors=132).split_k

    assert split(3584, 18944, 64) == 2  # 56 tiles
    assert split(1024, 18944, 64) == 4  # 16 tiles, and 4 times 4096 codes
    assert split(1024, 4096, 64) == split(37888, 18944, 64) == split(64, 64, 1) == 1
    for rows, block_m in ((1, 16), (16, 16), (17, 32), (64, 64), (65, 64), (129, 128), (8192, 128)):
        assert linear_choice.tiles_by_rule(4608, 3584, rows, 132).block_m == block_m


def test_a_file_that_cannot_be_read_is_left_out_with_a_line_in_the_log(tmp_path, caplog):
    assert tuned.load(tmp_path / "none.json") == {} and not caplog.records
    assert tuned.load(tmp_path) == {}
    assert has_line_naming(caplog.text, tmp_path)
