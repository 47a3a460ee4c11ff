"""Which weights may leave as codes: what every engine worker quantizes row by row, or has no place for."""

import pytest

from ascend_quant.integrations.verl.codes import agreed
from ascend_quant.refit import RefitError
from ascend_quant.schemes import SCHEMES

INT8 = SCHEMES["int8"]


def test_what_one_worker_has_no_place_for_another_one_takes():
    first, second = ("int8", ["q", "experts.0"], ["norm"]), ("int8", ["q", "experts.1"], ["norm"])
    assert agreed(INT8, [first, second]) == {"q", "experts.0", "experts.1"}


def test_what_one_worker_refuses_no_other_one_gets():
    assert agreed(INT8, [("int8", ["q", "k"], []), ("int8", ["q"], ["k"])]) == {"q"}


@pytest.mark.parametrize(
    ("workers", "named"),
    [
        ([("int8", ["q"], []), ("bf16", [], ["q"])], "bf16"),
        ([("fp8", ["q"], [])], "fp8"),
        ([("int8", [], ["q"])], "send"),
        ([], "send"),
    ],
)
def test_where_there_is_nothing_to_agree_on(workers, named):
    with pytest.raises(RefitError, match=named):
        agreed(INT8, workers)
