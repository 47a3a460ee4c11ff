"""What verl or our refits would refuse minutes after the start is refused at once, and what they take is not."""

import json
import shlex
import subprocess
import sys

import pytest
from naming import has_line_naming

from ascend_quant.integrations.verl.validate import problems
from launch import ROOT
from launch.recipes import Paths, load, names, resolve

PATHS = Paths("/models/one", "/data", "/runs/one")
ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
MAIN = "ascend_quant.integrations.verl.main_ppo"
ONE_OF_EACH = ("kimi-k2-thinking-int4", "qwen2.5-7b-int8-gsm8k-a2")


def overrides(name: str = "addition-int8") -> list[str]:
    changes = ["trainer.nnodes=1"] if name.startswith("addition") else []
    return list(resolve(load(name, changes), PATHS))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_recipes_are_taken(name: str):
    assert name in names()
    assert problems(overrides(name)) == []


def test_what_verl_takes_is_taken():
    more = [
        *("trainer.save_freq=10", "trainer.logger=console", "data.train_files=[/a,/b]", f"{ACTOR}.entropy_coeff=0.01"),
        *("+data.gen_batch_size=32", f"{ROLLOUT}.top_p=0.9", f"+{ROLLOUT}.engine_kwargs.vllm.max_num_seqs=8"),
        *(
            "+ray_kwargs.ray_init.runtime_env.env_vars.A='5'",
            f"{ACTOR}.optim.lr=1e-6",
            "trainer.test_freq=-1",
            "hydra.run.dir=/x",
        ),
    ]
    assert problems([*overrides(), *more]) == []


@pytest.mark.parametrize("page", ["verl.md", "verl.zh.md"])
def test_whole_commands_of_the_page_are_taken(page: str):
    """Those without dots at their end."""
    text = (ROOT / "docs" / page).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("python -m ") and "..." not in line]
    assert len(lines) == 2
    for words in map(shlex.split, lines):
        assert words[2] == MAIN and problems(words[3:]) == []


@pytest.mark.parametrize(
    "said",
    [
        {
            "trainer.save_frq=10": "trainer.save_frq: … trainer.save_freq?",
            "trianer.save_freq=3": "trianer: … trainer?",
        },
        {"~trainer.nothere": "trainer.nothere"},
        {"trainer.x=[a": "[a"},
        {"--config-name=x": "--config-name=x"},
        {"hydra.rn.dir=x": "hydra.rn.dir"},
        {"trainer.logger=${nothere}": "nothere"},
        {
            "trainer.save_freq=abc": "trainer.save_freq=abc: … number",
            "trainer.val_before_train=yes": "trainer.val_before_train=yes: … true or false",
            f"{ACTOR}.optim.lr=abc": "lr=abc: … number",
            "trainer.v1=5": "trainer.v1=5: … mapping",
        },
        {"data.train_batch_size=7": "7"},
        {"trainer.resume_mode=atuo": "disable, resume_path", "trainer.use_v1=false": "trainer.use_v1"},
        {"trainer.logger=wandbb": "wandbb"},
        {f"{ACTOR}.loss_agg_mode=token_mean": "token_mean"},
        {f"{ACTOR}.policy_loss.loss_mode=q": "loss mode: q"},
        {"algorithm.adv_estimator=grpp": "grpp"},
        {"reward.reward_manager.name=dapoo": "dapoo"},
        {f"++{ROLLOUT}.enable_sleep_mode=true": f"{ROLLOUT}.enable_sleep_mode=False"},
        {f"+{ROLLOUT}.engine_kwargs.ascend_quant.memory=keep": "ascend_quant.memory='keep'"},
        {f"++{ROLLOUT}.engine_kwargs.ascend_quant.send=delta": "ascend_quant.send=delta"},
        {f"+{ROLLOUT}.engine_kwargs.ascend_quant.sned=int8": "ascend_quant.sned"},
        {f"+{ROLLOUT}.engine_kwargs.ascend_quant.send=fp8": "ascend_quant.send=fp8 … int8"},
        {f"+{ROLLOUT}.engine_kwargs.ascend_quant.qat=int8": "ascend_quant.qat=int8: … int4_g32, int8_exact … token"},
        {f"+{ROLLOUT}.engine_kwargs.ascend_quant.qat=int4_g128": "int4_g128 … int8"},
    ],
)
def test_what_would_fail_later_is_refused(said: dict[str, str]):
    """Every line of a group is told of, in order or not, and nothing else is."""
    found = problems([*overrides(), *said])
    assert len(found) == len(said) and all(len(one.splitlines()) == 1 for one in found)
    assert [words for words in said.values() if not any(has_line_naming(one, words) for one in found)] == []


def test_what_verl_takes_in_more_than_one_kind_passes():
    given = ["algorithm.rollout_correction.rollout_is_threshold=0.5_5.0", "trainer.val_before_train=1"]
    assert problems([*overrides(), *given]) == []


def test_an_update_is_shared_out_among_the_workers():
    """28 samples among 8 devices of which 8 share a sequence (one worker), and of which none does."""
    given = [f"{ACTOR}.ppo_mini_batch_size=7", f"{ROLLOUT}.n=4"]
    whole = overrides("qwen2.5-32b-int8-dapo-h200")
    assert problems([*whole, *given]) == []
    alone = [f"{ACTOR}.ulysses_sequence_parallel_size=1", f"{ACTOR}.ppo_max_token_len_per_gpu=22528"]
    (line,) = problems([*whole, *given, *alone])
    assert "28 samples" in line and "8 workers" in line


def test_the_process_answers_in_json_whatever_verl_prints():
    done = subprocess.run(
        [sys.executable, "-m", "ascend_quant.integrations.verl.validate"],
        input=json.dumps(["trainer.save_frq=10"]),
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = json.loads(done.stdout.splitlines()[-1])
    assert "trainer.save_freq" in line
