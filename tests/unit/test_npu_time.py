"""benchmarks/npu_time.py: its table is the pages', and its seconds are those of the sentences around it."""

import json
from dataclasses import replace

import pytest

from benchmarks import npu_time
from benchmarks.npu_time import FAST, PAGES, ROOT, SLOW, Costs, Counts, Proof

BANDWIDTH = 1e12
ONLY_BYTES = Costs(1.0, 0.0, 0.0, 0.0, 0.0)
PROOF = Proof(6.0, calls=100, views=300)
SOME = Counts("some", 1, "fused", 10**9, 4 * 10**9, bytes=20.0, calls=1000, views=2000, waits=2, ai_cpu=0, proof=PROOF)
COST = ROOT / "docs" / "npu_cost.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_have_the_table(page):
    text = page.read_text()
    assert npu_time.into(text) == text and text.count("| qwen") == 6


def test_both_languages_have_the_same_headings_and_checks():
    texts = [page.read_text() for page in PAGES]
    assert len({text.count("\n#") for text in texts}) == 1
    assert len({tuple(word for word in text.split("`")[1::2] if "." in word) for text in texts}) == 1


def test_bytes_alone_are_bytes_over_the_bandwidth():
    assert SOME.seconds(BANDWIDTH, ONLY_BYTES) == pytest.approx(0.02)
    assert SOME.seconds(BANDWIDTH, ONLY_BYTES, proof=True) == pytest.approx(0.02 + 0.024)
    assert SOME.copies(BANDWIDTH, ONLY_BYTES) == pytest.approx(5.0)


def test_the_host_counts_where_it_is_slower_and_adds_up_where_it_waits():
    costs = Costs(1.0, call=1e-4, view=1e-5, wait=1e-3, ai_cpu=0.0)  # host: 0.1 + 0.02
    assert SOME.seconds(BANDWIDTH, costs) == pytest.approx(0.12 + 0.002)
    assert SOME.seconds(BANDWIDTH, costs, proof=True) == pytest.approx(0.11 + 0.023 + 0.002)
    assert replace(SOME, waits=5).seconds(BANDWIDTH, costs) == pytest.approx(0.02 + 0.12 + 0.005)
    assert replace(SOME, ai_cpu=3).seconds(BANDWIDTH, replace(ONLY_BYTES, ai_cpu=0.1)) == pytest.approx(0.32)


def test_the_fused_path_takes_less_than_seven_copies_by_both_sets_of_assumptions():
    fused = [one for one in npu_time.counted() if one.path == "fused"]
    assert len(fused) == 3 and all(one.copies(1.6e12, costs) < 7 for one in fused for costs in (FAST, SLOW))
    assert all(one.waits <= 2 and not one.ai_cpu for one in fused)


def test_fused_counts_are_those_of_the_cost_page():
    rows = [line for line in COST.read_text().splitlines() if ", NZ |" in line]
    fused = [one for one in npu_time.counted() if one.path == "fused"][:2]
    assert len(rows) == 2
    for row, one in zip(rows, fused, strict=True):
        _, _, calls, views, bytes_, _, waits, ai_cpu, *_ = [cell.split(" (")[0].strip() for cell in row.split("|")]
        assert (f"{one.calls:,}", f"{one.views:,}", str(one.waits), str(one.ai_cpu)) == (calls, views, waits, ai_cpu)
        assert one.bytes == pytest.approx(sum(map(float, bytes_.split(" + "))))


def test_the_tensors_are_those_of_the_checkpoints():
    counts = [npu_time.tensors_of(npu_time.get_model(name)) for name in ("qwen2.5-7b", "qwen3-30b-a3b")]
    assert counts == [339, 18_867]  # as Qwen's own index files have them


def test_the_models_have_the_elements_of_their_names():
    elements = {one.model: one.sent for one in npu_time.counted()}
    assert {name: round(count / 1e9, 1) for name, count in elements.items()} == {
        "qwen2.5-7b": 7.6,
        "qwen3-30b-a3b": 30.5,
        "qwen3-235b-a22b": 235.1,
    }


def test_counts_of_a_test_run_are_read():
    one = {"model": "7b", "format": "nz", "proof": False, "layers": 28, "elements": 10, "ops": 3, "views": 4}
    one |= {"bytes_per_element": 16.5, "hidden": 2, "waits": 1, "aicpu": {"index_add_ int64": 6, "x": 1}}
    (found,) = npu_time.from_json(json.dumps([one, one | {"proof": True}]))
    assert found == Counts("7b", 1, "nz", 10, 10, 18.5, 3, 4, 1, 7)
    for text in (json.dumps([{"model": "7b"}]), "7", json.dumps([one | {"aicpu": 3}])):
        with pytest.raises(ValueError, match="NPU_COST"):
            npu_time.from_json(text)


def test_a_page_without_the_comments_is_an_error():
    with pytest.raises(ValueError, match="npu_time"):
        npu_time.into("# no place")
