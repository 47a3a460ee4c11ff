"""Old names in --set stand for what they made, and the notice says it in new ones that make the same."""

import pytest
from test_recipe_files import load, write

from launch import LaunchError
from launch.recipes import Paths, old_names, resolve

PATHS = Paths("/m", "/d", "/o")
QUANTIZATION = "actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides.quantization_config"
CASES = {
    "rollout.scheme=bf16": ["scheme=bf16"],
    "rollout.kv_cache=fp8": ["kv=fp8"],
    "rollout.n=16": ["actor_rollout_ref.rollout.n=16"],
    "rollout={n: 16, ignore: ['re:.*q_proj']}": [
        "actor_rollout_ref.rollout.n=16",
        f"{QUANTIZATION}.ignore=['re:.*q_proj']",
    ],
    "nodes=2": ["trainer.nnodes=2"],
    "rollout.apart=2": ["placement=apart", "trainer.n_gpus_per_node=6", "actor_rollout_ref.rollout.n_gpus_per_node=2"],
    "training.offload=true": ["recipe.offload=true"],
    "training.cpu_adam=true": ["optimizer=cpu"],
    "training.precision=fp8": ["precision=fp8"],
    "correction={level: token, bypass: true}": ["correction=bypass"],
    "qat=int4_g32": ["actor_rollout_ref.rollout.engine_kwargs.ascend_quant.qat=int4_g32"],
    "memory.host=9": ["recipe.memory.host=9"],
    "data.train=/x.parquet": ["recipe.data.train=/x.parquet"],
    "environment.A=b": ["recipe.environment.A=b"],
    "verl.trainer.save_freq=7": ["trainer.save_freq=7"],
}


@pytest.mark.parametrize("old", CASES)
def test_an_old_name_is_told_by_its_new_ones(tmp_path, capsys, old: str):
    old_names._tell.cache_clear()
    file = write(tmp_path)
    translated = load(file, [old])
    told = capsys.readouterr().err
    assert all(new.partition("=")[0] in told for new in CASES[old]) and len(told.splitlines()) == 1
    written = load(file, CASES[old])
    assert {*resolve(translated, PATHS)} == {*resolve(written, PATHS)}
    assert translated.model_dump() == written.model_dump()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "change, said",
    [
        ("rollout.ignored=[]", "rollout.ignored"),
        ("rollout.n=[1", "--set rollout.n: "),
        ("rollout.n=010", "--set rollout.n: "),
        ("environment={A_KEY: 1234, A_KEY: 5}", "--set environment: "),
    ],
)
def test_what_is_no_old_field_or_value_is_named(tmp_path, change: str, said: str):
    with pytest.raises(LaunchError) as caught:
        load(write(tmp_path), [change])
    assert said in str(caught.value) and "1234" not in str(caught.value)


def test_a_correction_beside_an_exact_trainer_is_refused_and_without_it_chosen():
    with pytest.raises(LaunchError, match="int8_exact"):
        load("addition-int8", ["qat=int8_exact", "correction.level=sequence"])
    assert load("addition-int8", ["qat=int8_exact"]).is_exact
    exact = "qwen2.5-7b-int8-exact-gsm8k-h100"
    with pytest.raises(LaunchError, match="correction=token"):
        load(exact, ["qat=null"])
