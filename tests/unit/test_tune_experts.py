"""What the tuner would try for mixtures of experts is written down as the tables have it, and fits the GPU."""

import pytest

pytest.importorskip("triton")

from ascend_quant.kernels import tuned
from ascend_quant.kernels.cuda.serve import triton_experts
from benchmarks.tune import experts as tune_experts
from benchmarks.tune.table import save

SHAPE = tune_experts.SHAPES[0]
PROCESSORS = 132


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0)])
@pytest.mark.parametrize("rows", [1, 64, 256, 1024, 8192])
def test_choices_are_those_of_the_tables(capability, rows, tmp_path):
    choices = tune_experts.candidates(SHAPE, rows, capability, PROCESSORS)
    choices += [one for choice in choices for one in tune_experts.refined(choice, capability)]
    assert choices
    for choice in choices:
        assert triton_experts.tiles_of(choice)._asdict() == {name: choice[name] for name in choice if name != "by"}
        assert not choice["pdl"] or capability >= (9, 0)
    file = tmp_path / "gpu.json"
    save(file, {"experts": {SHAPE: dict(enumerate(choices, 1))}})
    assert list(tuned.load(file)["experts"][SHAPE].values()) == choices


def test_choices_have_as_many_pairs_a_block_as_experts_have():
    sizes = {
        rows: {choice["block_m"] for choice in tune_experts.candidates(SHAPE, rows, (9, 0), PROCESSORS)}
        for rows in (1, 64, 256, 8192)
    }
    assert sizes[1] == sizes[64] == {16, 32}
    assert sizes[256] == {16, 32} and 128 in sizes[8192]


def test_the_floor_counts_the_experts_that_are_reached():
    one, many = (tune_experts.floor(SHAPE, rows, "NVIDIA_H200") for rows in (1, 64))
    assert one == pytest.approx(many / (128 * (1 - (1 - 8 / 128) ** 64)) * 8)
    assert tune_experts.floor(SHAPE, 1, "another") is None
