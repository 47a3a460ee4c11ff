"""The two READMEs say the same: code, tables' figures and links are equal, headings match one to one."""

import json
import re
from pathlib import Path
from statistics import fmean, median

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = ((ROOT / name).read_text() for name in ("README.md", "README.zh.md"))


def blocks(text: str) -> list[str]:
    return re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)


def test_code_is_the_same():
    assert blocks(ENGLISH) == blocks(CHINESE)


def test_headings_match_one_to_one():
    english, chinese = ([len(marks) for marks in re.findall(r"^(#+) ", text, re.M)] for text in (ENGLISH, CHINESE))
    assert english == chinese


def test_tables_have_the_same_figures():
    def figures(text: str) -> list[list[str]]:
        return [re.findall(r"\d+(?:\.\d+)*", line) for line in text.splitlines() if line.startswith("|")]

    assert figures(ENGLISH) == figures(CHINESE)


def test_demo_figures_are_those_of_the_run_in_the_picture():
    run = json.loads((ROOT / "docs/demo.json").read_text())
    for arm in run["arms"]:
        steps = arm["steps"]
        row = [
            arm["name"],
            f"{steps[0]['reward']:.2f}",
            f"{arm['final_reward']:.3f}",
            f"{fmean(step['k3_kl'] for step in steps):.1e}",
            f"{min(step['ess'] for step in steps):.4f}",
            f"{1000 * median(step['refit_seconds'] for step in steps):.0f}",
            f"{median(step['step_seconds'] for step in steps):.1f}",
        ]
        for text in (ENGLISH, CHINESE):
            assert f"| {' | '.join(row)} |" in text
    for figure in (
        f"{run['seconds'] / 60:.1f}",
        f"{run['hardware']['peak_memory_gib']:.1f} GiB",
        run["hardware"]["cpu"],
    ):
        assert figure in ENGLISH and figure in CHINESE


def test_rollouts_are_those_of_the_runs_that_are_kept():
    names = {"qwen2.5-7b": "Qwen2.5-7B", "qwen2.5-32b": "Qwen2.5-32B", "qwen3-30b-a3b": "Qwen3-30B-A3B"}
    rows = json.loads((ROOT / "benchmarks/results/2026-11-23-h200-x2-rollout.json").read_text())["rows"]
    found = {(row["model"], row["batch"], row["scheme"]): row for row in rows}
    for model, batch in {key[:2] for key in found}:
        plain, theirs, ours = (found[model, batch, scheme] for scheme in ("bf16", "int8-vllm", "int8-ours"))
        cells = [f"{row['rate']:,.0f} ({row['ratio']:.2f})" for row in (theirs, ours)]
        line = f"| {names[model]} | {batch} | {plain['rate']:,.0f} | {' | '.join(cells)} |"
        assert line in ENGLISH and line in CHINESE, line


def test_linked_files_exist():
    for text in (ENGLISH, CHINESE):
        for target in re.findall(r"\]\(([^)]+)\)", text):
            assert (ROOT / target).exists(), target


def test_commands_that_ci_runs_stand_in_the_readme():
    assert "./run.sh test all" in ENGLISH
    assert "./run.sh test all" in (ROOT / ".ci/run").read_text()
