"""What is left of an engine that failed."""

from ascend_quant.mismatch.engines import last_words

LOG = """INFO starts
(EngineCore pid=7) ERROR 11-21 15:42:48 [core.py:72] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-21 15:42:48 [core.py:72] RefitError: missing a.weight
(EngineCore pid=7) RefitError: missing a.weight

"""


def test_the_cause_comes_first_and_once():
    found = last_words(LOG + "\n".join(f"  frame {i}" for i in range(40)) + "\nbuiltins.RuntimeError: see above\n")
    assert found.splitlines()[:3] == ["RefitError: missing a.weight", "builtins.RuntimeError: see above", "..."]
    assert found.splitlines()[3:] == [f"  frame {i}" for i in range(33, 40)] + ["builtins.RuntimeError: see above"]


def test_a_log_without_errors_gives_its_end():
    assert last_words("one\n\ntwo\n") == "...\none\ntwo"
