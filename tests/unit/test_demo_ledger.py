"""The GPU demo's task: what is asked and answered, against sums and a count of carries made here."""

import random
import re
from itertools import accumulate, islice, pairwise

import pytest

from launch.demo import tasks
from launch.demo.model import END, build_tokenizer, vocabulary
from launch.demo.recipe import load_recipe
from launch.demo.reward import compute_score
from launch.demo.tasks import Ledger, write_parquet

LEDGER = Ledger()
LINE = re.compile(r"([a-zA-Z])(\d):(\d{3})")


def entries(prompt: str) -> list[tuple[str, int]]:
    return [(key, int(digit)) for key, digit in re.findall(r"([a-zA-Z])(\d)", prompt)]


def test_the_answer_of_the_docstring():
    assert tasks.asked([7, 5, 9]) == "a7b5c9="
    assert tasks.written([7, 5, 9], tasks.running([7, 5, 9])) == "a7:007 b5:012 c9:021"


def test_every_answer_copies_the_column_and_adds_it_up():
    for problem in islice(LEDGER.problems(0), 300):
        column, lines = entries(problem.prompt), LINE.findall(problem.answer)
        assert 16 <= len(column) <= 24 and len({key for key, _ in column}) == len(column)
        assert [(key, int(digit)) for key, digit, _ in lines] == column
        assert [int(total) for *_, total in lines] == list(accumulate(digit for _, digit in column))
        assert " ".join(f"{key}{digit}:{total}" for key, digit, total in lines) == problem.answer
        assert compute_score("ledger", problem.answer, problem.result) == 1.0


@pytest.mark.parametrize(
    ("said", "reward"),
    [("a7:007 b5:012", 1.0), ("a7:007 b5:002", 0.0), ("a7:007 b5:012 ", 0.0), ("012", 1.0), ("", 0.0)],
)
def test_the_reward_looks_at_the_last_total_alone(said, reward):
    assert compute_score("ledger", said, "012") == reward


def test_a_forgotten_carry_spoils_what_follows():
    """The teacher's totals: each right from the line before, or short of it by ten where it carries."""
    carries = slips = 0
    for prompt, answer in (pair for batch in islice(LEDGER.lessons(1, 50), 8) for pair in batch):
        totals = [0, *(int(total) for *_, total in LINE.findall(answer))]
        for (before, after), (_, digit) in zip(pairwise(totals), entries(prompt), strict=True):
            carry = (before + digit) // 10 > before // 10
            assert after == before + digit or (carry and after == before + digit - 10)
            carries, slips = carries + carry, slips + (after != before + digit)
        result = f"{sum(digit for _, digit in entries(prompt)):03d}"
        assert (compute_score("ledger", answer, result) == 1.0) == (totals[-1] == int(result))
    assert carries > 3000
    assert abs(slips / carries - LEDGER.slips) < 4 * (LEDGER.slips / carries) ** 0.5


def test_the_teacher_is_right_often_enough_to_learn_from():
    lessons = [pair for batch in islice(LEDGER.lessons(2, 50), 20) for pair in batch]
    right = [compute_score("ledger", answer, f"{sum(d for _, d in entries(prompt)):03d}") for prompt, answer in lessons]
    assert 0.35 < sum(right) / len(right) < 0.5


def test_a_seed_draws_the_same_and_the_exam_is_of_no_column_that_is_asked():
    first, again, other = ([p.prompt for p in islice(LEDGER.problems(seed), 50)] for seed in (3, 3, 4))
    assert first == again != other
    assert next(LEDGER.lessons(3, 5)) == next(LEDGER.lessons(3, 5))
    assert not {problem.prompt for problem in LEDGER.exam()} & set(first)


def test_every_character_is_a_token_and_a_whole_answer_fits():
    longest = max(islice(LEDGER.problems(5), 500), key=lambda problem: len(problem.answer))
    tokens = build_tokenizer(LEDGER.alphabet).encode(longest.prompt + longest.answer)
    assert len(vocabulary(LEDGER.alphabet)) == 64
    assert tokens == [vocabulary(LEDGER.alphabet)[{" ": "Ġ"}.get(c, c)] for c in longest.prompt + longest.answer]
    assert len(tokens) + 1 == LEDGER.width, "the longest column is among these"
    data = load_recipe("demo-cuda")["verl"]["data"]
    assert len(longest.prompt) <= data["max_prompt_length"]
    assert 100 <= 16 * 7 <= len(longest.answer) + 1 <= min(500, data["max_response_length"])


def test_the_warm_up_sees_what_the_tokenizer_would_write():
    pytest.importorskip("torch")
    from launch.demo.warmup import IGNORED, encode

    prompt, answer = "a7b5=", "a7:007 b5:012"
    tokens, labels = encode([(prompt, answer)], LEDGER)
    written = [*build_tokenizer(LEDGER.alphabet).encode(prompt + answer), vocabulary(LEDGER.alphabet)[END]]
    assert tokens[0, : len(written)].tolist() == written
    assert labels[0].tolist() == [IGNORED] * 5 + written[5:] + [IGNORED] * (LEDGER.width - len(written))


def test_the_file_for_verl(tmp_path):
    pandas = pytest.importorskip("pandas")
    write_parquet(tmp_path / "prompts.parquet", 40, 6, LEDGER)
    rows = pandas.read_parquet(tmp_path / "prompts.parquet")
    assert len(rows) == 40 and set(rows["data_source"]) == {"ledger"}
    for prompt, model in zip(rows["prompt"], rows["reward_model"], strict=True):
        assert int(model["ground_truth"]) == sum(digit for _, digit in entries(prompt[0]["content"]))


def test_totals_with_and_without_slips_by_hand():
    class Always(random.Random):
        def random(self):
            return 0.0

    assert tasks.running([9, 9, 9]) == [9, 18, 27]
    assert tasks.running([9, 9, 9], Always(), 0.5) == [9, 8, 7]
