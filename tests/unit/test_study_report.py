"""What a study says of its cells, against numbers worked out another way."""

import json

import numpy as np
import pytest

from launch.study.report import BEHIND, FOLLOWS, UNTOLD, answers, markdown, rows, verdicts, write

STEPS = 8


def cell(arm: str, rate: str, seed: int, first: float, last: float) -> dict:
    """A cell whose reward is `first` in the first steps and `last` in the last five."""
    steps = range(1, STEPS + 1)
    metrics = {
        "reward": [last if step > STEPS - 5 else first for step in steps],
        "k3_kl": [1e-5 * step for step in steps],
    }
    metrics["ess"] = [0.9] * STEPS
    hardware = {"cpu": "a CPU"}
    return {"arm": arm, "rate": rate, "seed": seed, "task": "sums", "hardware": hardware, "metrics": metrics}


def of(results: dict[tuple[str, str], list[float]], first: float = 0.4) -> list[dict]:
    """Cells of (rate, arm), whose last rewards are given seed by seed."""
    return [
        cell(arm, rate, seed, first, last) for (rate, arm), lasts in results.items() for seed, last in enumerate(lasts)
    ]


def test_gaps_are_those_of_the_same_seed():
    bf16, int8 = [0.70, 0.92, 0.81], [0.69, 0.88, 0.82]
    found = {row["arm"]: row for row in rows(of({("1e-5", "bf16"): bf16, ("1e-5", "int8"): int8}))}
    difference = np.subtract(int8, bf16)
    assert found["int8"]["gap"] == pytest.approx(difference.mean())
    assert found["int8"]["gap_error"] == pytest.approx(difference.std(ddof=1) / 3**0.5)
    assert found["int8"]["last"] == pytest.approx(np.mean(int8)) and found["int8"]["first"] == pytest.approx(0.4)
    assert found["bf16"]["gap"] == 0


def test_a_seed_that_only_one_arm_has_is_in_no_gap():
    found = {row["arm"]: row for row in rows(of({("1e-5", "bf16"): [0.7], ("1e-5", "int8"): [0.6, 0.1]}))}
    assert found["int8"]["seeds"] == 2 and found["int8"]["gap"] == pytest.approx(-0.1)
    assert np.isnan(found["int8"]["gap_error"])
    alone = rows(of({("1e-5", "int8"): [0.6]}))
    assert np.isnan(alone[0]["gap"])


def test_rates_fall_and_arms_keep_their_order():
    results = {(rate, arm): [0.5] for rate in ("5e-8", "1e-4", "1e-6") for arm in ("fp8", "int8", "bf16")}
    assert [(row["rate"], row["arm"]) for row in rows(of(results))] == [
        (rate, arm) for rate in ("1e-4", "1e-6", "5e-8") for arm in ("bf16", "int8", "fp8")
    ]


@pytest.mark.parametrize(
    ("bf16", "others", "verdict", "helps"),
    [
        (0.41, {"int8": 0.41}, UNTOLD, []),
        (0.41, {"int8": 0.30, "fp8": 0.41}, UNTOLD, []),
        (0.90, {"int8": 0.89, "fp8": 0.2}, FOLLOWS, []),
        (0.90, {"int8": 0.95}, FOLLOWS, []),
        (0.90, {"int8": 0.50, "int8-qat": 0.88, "fp8": 0.6}, BEHIND, ["int8-qat"]),
        (0.90, {"int8": 0.86}, BEHIND, []),
    ],
)
def test_the_verdict_follows_from_the_rewards(bf16, others, verdict, helps):
    results = of({("1e-5", arm): [value, value] for arm, value in {"bf16": bf16, **others}.items()})
    (found,) = verdicts(results)
    assert (found["rate"], found["verdict"], found["helps"]) == ("1e-5", verdict, helps)
    assert found["learnt"] == pytest.approx(bf16 - 0.4) and found["gap"] == pytest.approx(others["int8"] - bf16)
    (answer,) = answers(results)
    assert all(name in answer for name in ("lr 1e-5", *helps)) and "0.2" not in answer


def test_there_is_none_without_both():
    assert verdicts(of({("1e-5", "int8"): [0.9]})) == verdicts(of({("1e-5", "bf16"): [0.9]})) == []


def test_what_is_written_is_whole(tmp_path):
    found = of({(rate, arm): [0.7, 0.8] for rate in ("1e-4", "1e-6") for arm in ("bf16", "int8", "int8-uncorrected")})
    for one in found:
        if one["arm"] == "int8-uncorrected":
            del one["metrics"]["ess"]
    write(found, tmp_path)
    told = json.loads((tmp_path / "study.json").read_text())
    assert (
        len(told["rows"]) == 6
        and len(told["cells"]) == 12
        and [one["rate"] for one in told["verdicts"]] == ["1e-4", "1e-6"]
    )
    assert [row["ess"] for row in told["rows"] if row["arm"] == "int8-uncorrected"] == [None, None]
    lines = (tmp_path / "study.md").read_text().splitlines()
    assert lines[: len(told["rows"]) + 2] == markdown(found)
    assert len({line.count("|") for line in markdown(found)}) == 1
    assert (tmp_path / "study.png").stat().st_size > 10_000
