"""Plans: what each host is told, and what does not go together. Start lines are run by a real shell."""

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from naming import has_line_naming
from plan_cases import RUN, TWO_A2, inventory, plan

from launch import LaunchError
from launch.cluster.inventory import Inventory, Ports
from launch.cluster.transport import command_of
from launch.plan import NodePlan, job
from launch.plan.job import places
from launch.plan.start import ASCEND_ADDRESSES, NPU_SMI, RDMA_DEVICES, start_line
from launch.recipes import load, resolve
from launch.recipes.verl import RELEASE

ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"


def said(**arguments) -> str:
    with pytest.raises(LaunchError) as raised:
        plan(**arguments)
    return str(raised.value)


def settings(overrides: list[str]) -> dict[str, str]:
    """Overrides as hydra's own parser reads them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(overrides)
    assert len({one.key_or_group for one in parsed}) == len(parsed), "a key is there twice"
    return {one.key_or_group: one.value() for one in parsed}


def test_the_first_host_is_the_head_and_has_the_job():
    made = plan()
    head, worker = made.nodes
    assert (head.role, worker.role, head.job is None, worker.job) == ("head", "worker", False, None)
    assert head.head == worker.head == "192.0.2.11"
    assert head.members == worker.members == ["192.0.2.11", "192.0.2.12"]
    assert head.ports == Ports().model_dump()
    assert {node.socket_filter for node in made.nodes} == {False}
    for node in plan(machines=inventory(socket_filter=True), shell={"FLASHRL_CONFIG": "a\nb"}).nodes:
        assert node.socket_filter and "\n" not in node.to_json()
        assert NodePlan.from_json(node.to_json()) == node


@pytest.mark.parametrize("key", ["actor.ulysses_{}", "actor.fsdp_config.ulysses_{}", "ref.fsdp_config.ulysses_{}"])
def test_an_attention_that_exchanges_no_heads_is_refused(key: str):
    """On ascend-cann8.5, whose entry is verl's own, nothing else would."""
    stack, shared = "ascend-cann8.5", f"actor_rollout_ref.{key.format('sequence_parallel_size')}"
    given = {"recipe": "qwen2.5-7b-int8-gsm8k-a2", "machines": inventory(stack)}
    line = said(**given, extra=[f"stack={stack}", f"++{ATTENTION}=sdpa", f"{shared}=2"])
    assert has_line_naming(line, f"{ATTENTION}=sdpa", "ulysses_sequence_parallel_size=2", "flash_attention_2")
    for fine in ([f"{shared}=2"], [f"++{ATTENTION}=sdpa", f"{shared}=1"]):
        plan(**given, extra=[f"stack={stack}", *fine])


def test_an_attention_without_a_kernel_for_the_stacks_devices_is_refused():
    """`smoke` trains addition-int8 on whatever is there."""
    given = {"recipe": "addition-int8", "machines": inventory(hosts=["192.0.2.11"])}
    on_npus = ["trainer.nnodes=1", "stack=ascend-cann9.1", "trainer.device=npu"]
    job = plan(**given, extra=on_npus).nodes[0].job
    assert not [one for one in job.entrypoint if "attn_implementation" in one or "external_lib" in one]
    line = said(**given, extra=[*on_npus, f"++{ATTENTION}=torch_varlen"])
    assert has_line_naming(line, f"{ATTENTION}=torch_varlen", "npu", "flash_attention_2")


def test_the_job_is_the_recipes_command_with_the_users_settings():
    made, recipe = plan(extra=["trainer.save_freq=5", "+trainer.new=1"]), load(TWO_A2)
    overrides = resolve(recipe, places(recipe, inventory(), RUN, False))
    entrypoint = made.nodes[0].job.entrypoint
    assert entrypoint[:2] == ["-m", RELEASE.main]
    assert {*entrypoint[2:]} ^ {*overrides} == {
        "trainer.save_freq=20",
        "trainer.save_freq=5",
        "+trainer.new=1",
    }


def test_metrics_lie_beside_the_checkpoints_in_a_folder_of_the_run_s_own_unless_the_user_says_where():
    """A run that goes on in --out of another would begin its file of metrics anew."""
    folder = f"/shared/old/metrics-{RUN}"
    environment = plan(out="/shared/old").nodes[0].job.environment
    assert environment == {"VERL_FILE_LOGGER_ROOT": folder, "TENSORBOARD_DIR": f"{folder}/tensorboard"}
    mine = plan(out="/shared/old", shell={"TENSORBOARD_DIR": "/mine"}).nodes[0].job.environment
    assert mine == {"VERL_FILE_LOGGER_ROOT": folder}


def test_a_job_that_may_restart_goes_on_from_its_checkpoint():
    """Without checkpoints it begins anew, which is noted."""
    entrypoint = plan(restarts=1, extra=["trainer.resume_mode=disable"]).nodes[0].job.entrypoint
    assert settings(entrypoint[2:])["trainer.resume_mode"] == "auto"
    assert not [note for note in plan(restarts=1).notes if "save_freq" in note]
    assert [note for note in plan(restarts=1, extra=["trainer.save_freq=-1"]).notes if "trainer.save_freq=10" in note]
    assert not [note for note in plan(extra=["trainer.save_freq=-1"]).notes if "save_freq" in note]


def test_a_variable_of_the_recipe_is_the_users_if_he_sets_it():
    name = "NVTE_FP8_BLOCK_SCALING_FP32_SCALES"
    machines = inventory("cuda13", ["192.0.2.11"])
    assert any(name in one for one in plan("qwen3-4b-fp8", machines).nodes[0].job.entrypoint)
    changed = plan("qwen3-4b-fp8", inventory("cuda13", ["192.0.2.11"], environment={name: "0"}))
    assert not any(name in one for one in changed.nodes[0].job.entrypoint)
    assert changed.nodes[0].layers == [("recipe", {name: "1"}), ("inventory", {name: "0"})]


@pytest.mark.parametrize(
    ("recipe", "extra", "queue", "mode"),
    [
        ("qwen2.5-7b-int8-gsm8k-a2", (), "1", "AIV"),
        ("qwen3-30b-a3b-int8-grpo-a3", (), "1", "AIV"),
        ("qwen3-30b-a3b-int8-grpo-a3", ("expert_parallel_size=4",), "1", ""),  # MC2
        ("qwen2.5-7b-int8-gsm8k-a2", ("tensor_model_parallel_size=1", "enforce_eager=True"), "2", ""),  # no collectives
        ("qwen3-30b-a3b-int8-grpo-2xa2", (), "1", ""),  # the trainer's go between hosts
    ],
)
def test_collectives_run_on_vector_cores_where_an_engine_of_one_host_shares_layers(recipe, extra, queue, mode):
    """And the task queue follows the graph mode."""
    changed = load(recipe, [f"actor_rollout_ref.rollout.{one}" for one in extra])
    made = job.values(changed, Ports())
    assert (made["task_queue"], made["expansion"]) == (queue, mode)


def test_a_recipe_for_gpus_that_extends_one_for_npus_has_nothing_of_hccl(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "# @package _global_\ndefaults: [qwen2.5-7b-int8-gsm8k-a2, _self_]\n"
        "recipe: {name: mine, environment: {P2P_HCCL_BUFFSIZE: '40', NCCL_DEBUG: INFO}}\n"
    )
    made = plan(str(file), inventory("cuda13"), ["stack=cuda13"])
    assert made.nodes[0].layers == [("recipe", {"NCCL_DEBUG": "INFO"})]
    made = plan("qwen2.5-7b-int8-gsm8k-a2", inventory())
    assert made.nodes[0].layers == [("recipe", {"HCCL_CONNECT_TIMEOUT": "3000"})]


def test_layers_are_in_order_and_a_hosts_own_is_not_handed_to_others():
    hosts = [{"address": "192.0.2.11", "environment": {"A": "host"}}, "192.0.2.12"]
    shell = {"HCCL_IF_IP": "192.0.2.11", "FLASHRL_CONFIG": "int8", "HOME": "/me", "RAY_ADDRESS": "other:1"}
    made = plan(machines=inventory(hosts=hosts, environment={"A": "all"}), shell=shell, local=[True, False])
    here, there = made.nodes
    assert here.layers[-3:] == [
        ("inventory", {"A": "all"}),
        ("host", {"A": "host"}),
        ("shell", {"HCCL_IF_IP": "192.0.2.11", "FLASHRL_CONFIG": "int8"}),
    ]
    assert there.layers[-2:] == [("inventory", {"A": "all"}), ("shell", {"FLASHRL_CONFIG": "int8"})]
    assert [note for note in made.notes if has_line_naming(note, "other hosts: HCCL_IF_IP:")]


def test_too_few_hosts_and_devices_are_said_with_what_to_change():
    assert "-- trainer.nnodes=1" in said(machines=inventory(hosts=["192.0.2.11"]))
    few = [{"address": "192.0.2.11", "devices": [0, 1]}, {"address": "192.0.2.12", "devices": 4}]
    lines = said(machines=inventory(hosts=few)).splitlines()
    assert [line.rpartition("-- trainer.n_gpus_per_node=")[2] for line in lines] == ["2", "4"]
    assert "-- stack=cuda13" in said(machines=inventory("cuda13"))


def test_more_hosts_than_needed_are_left_alone():
    made = plan(machines=inventory(hosts=[f"192.0.2.{number}" for number in (11, 12, 13)]))
    assert [node.address for node in made.nodes] == ["192.0.2.11", "192.0.2.12"] == made.nodes[0].members
    assert len(made.nodes) == len(made.inventory.hosts) == len(made.local) == 2
    assert [note for note in made.notes if "192.0.2.13" in note]


def test_the_devices_of_the_inventory_or_of_the_users_variable_are_taken():
    hosts = [{"address": "192.0.2.11", "devices": [8, 9, 10, 11, 12, 13, 14, 15, 0]}, "192.0.2.12"]
    found = [node.devices for node in plan(machines=inventory(hosts=hosts)).nodes]
    assert found == [list(range(8, 16)), 8]  # as many as the recipe wants
    environment = {"ASCEND_RT_VISIBLE_DEVICES": "8,9,10,11,12,13,14,15"}
    assert plan(machines=inventory(environment=environment)).nodes[1].devices == list(range(8, 16))
    assert "ASCEND_RT_VISIBLE_DEVICES=8,9 " in said(
        machines=inventory(environment={"ASCEND_RT_VISIBLE_DEVICES": "8,9"})
    )
    assert "ASCEND_RT_VISIBLE_DEVICES=all " in said(
        machines=inventory(environment={"ASCEND_RT_VISIBLE_DEVICES": "all"})
    )


def test_checkpoints_of_several_hosts_lie_in_a_shared_folder():
    assert plan().nodes[1].out == f"/shared/runs/{RUN}"
    assert plan(out="/shared/mine").nodes[1].out == "/shared/mine"
    line = said(out="/sharedness/mine")
    assert "--out /sharedness/mine" in line and "/shared" in line
    assert plan("addition-int8", inventory("cpu"), extra=["trainer.nnodes=1"], out="/any").nodes[0].out == "/any"


def test_a_model_is_a_folder_or_an_id_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    data = ["/opt/project/data/dapo-math-17k/train.parquet", "/opt/project/data/aime-2024/test.parquet"]
    assert plan().nodes[1].needs == data
    assert [note for note in plan().notes if has_line_naming(note, "Qwen/Qwen3-30B-A3B", "hub")]
    assert plan(model="mine").nodes[1].needs == [str(tmp_path / "mine"), *data]
    assert plan(model="/models/qwen").nodes[1].needs == ["/models/qwen", *data]
    assert plan(model="org/name").nodes[1].needs == data
    for name in ("mine/mistyped", "no/such/folder", "no/", "single", "~/model"):  # no ids of the hub
        made = plan(model=name)
        assert made.nodes[1].needs[0] == made.nodes[1].model == os.path.abspath(name)
        assert not [note for note in made.notes if "of the hub" in note]


def test_a_model_that_is_prepared_lies_among_the_data():
    made = plan("addition-int8", inventory("cpu"), data="/shared/data")
    assert made.nodes[0].needs[0] == "/shared/data/addition/start"
    assert len(made.nodes[0].needs) == 3 and not made.nodes[0].job.files  # the reward is a module of the package


def test_in_a_container_every_path_must_be_mounted():
    machines = inventory(image="img", project=None, mounts=["/nfs:/shared"])
    assert plan(machines=machines).nodes[0].needs[0].startswith("/shared/data/")
    line = said(machines=machines, model="/models/qwen")
    assert has_line_naming(line, "/models/qwen:", "container", "/models/qwen:/models/qwen")


def test_the_start_line_runs_the_projects_python_marked_with_the_run(tmp_path: Path):
    folder = tmp_path / "a project"
    folder.mkdir()
    machines = inventory(project=str(folder), python=sys.executable)
    show = "import json, os, sys; print(json.dumps([os.getcwd(), os.environ.get('ASCEND_QUANT_RUN'), sys.argv[1:]]))"
    for run in (RUN, None):
        line = start_line(machines, 0, ["-c", show, "a b"], run=run)
        answer = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, timeout=60)
        assert json.loads(answer.stdout) == [str(folder), run, ["a b"]]


def docker_said(machines: Inventory, tmp_path: Path, run: str | None, chosen="auto", **changes: str) -> list[str]:
    """The arguments that a shell gives to docker: an executable of that name that writes them down.

    Args:
        chosen: the NPUs of the run.
        changes: paths of the host, by what they are, and others in their place.
    """
    tool, written = tmp_path / "bin" / "docker", tmp_path / "arguments"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" > '{written}'\n")
    tool.chmod(0o755)
    line = start_line(machines, 1, run=run, shm=7, devices=chosen)
    places = {"devices": "/dev/davinci[0-9]*", "addresses": ASCEND_ADDRESSES, "rdma": RDMA_DEVICES}
    places |= {"bin": NPU_SMI[0], "sbin": NPU_SMI[1]}
    for old, new in changes.items():
        line = line.replace(places[old], new)
    path = f"{tool.parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", line], env={"PATH": path}, check=True, timeout=60)
    return written.read_text().removesuffix("\0").split("\0")


@pytest.fixture
def npus(tmp_path: Path) -> Path:
    """A folder with the files of NPUs 0, 2 and 10."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("davinci0", "davinci2", "davinci10", "davinci_manager"):
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("chosen", "mapped"),
    [("auto", ["{dev}/davinci0", "{dev}/davinci2", "{dev}/davinci10"]), (2, ["{dev}/davinci0", "{dev}/davinci2"])],
)
def test_a_container_has_as_many_npus_as_the_run_wants(tmp_path: Path, npus: Path, chosen, mapped: list[str]):
    """An NPU belongs to one container: what the run does not use is left to others. The first are the node's first."""
    machines = inventory(image="img", project=None)
    said = docker_said(machines, tmp_path, None, chosen, devices=f"{npus}/davinci[0-9]*")
    assert [one for one in said if "davinci" in one and "manager" not in one] == [
        f"--device={path.format(dev=npus)}" for path in mapped
    ]


def test_the_container_of_a_run_has_the_npus_that_were_chosen_alone(tmp_path: Path):
    hosts = [{"address": "192.0.2.11", "devices": list(range(8, 16))}, "192.0.2.12"]
    shell = {"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3,4,5,6,15"}
    machines = inventory(hosts=hosts, image="img", project=None, mounts=["/nfs:/shared"])
    made = plan(machines=machines)
    first, second = (command_of(made, number)[-1] for number in (0, 1))
    assert shlex.split(first).count("--device=/dev/davinci15") == 1 and "/dev/davinci7 " not in first
    assert "| head -n 8 |" in second and re.findall(r"davinci\d", second) == []
    machines = inventory(image="img", project=None, mounts=["/nfs:/shared"])
    line = command_of(plan(machines=machines, shell=shell, local=[True, False]), 0)[-1]
    assert re.findall(r"/dev/davinci(\d+)", line) == [*"0123456", "15"]


def test_the_container_has_the_hosts_network_its_npus_and_the_driver(tmp_path: Path):
    machines = inventory(image="img:1", mounts=["/nfs:/shared", "/models:/models:ro"], project="/shared/project")
    said = docker_said(machines, tmp_path, RUN, [0, 1, 15])
    assert said[0] == "run" and said[said.index("img:1") + 1 :] == ["python", "-m", "launch", "node"]
    options = said[: said.index("img:1")]
    npus = [f"--device=/dev/davinci{number}" for number in (0, 1, 15)]
    managers = [f"--device=/dev/{name}" for name in ("davinci_manager", "devmm_svm", "hisi_hdc")]
    assert [one for one in options if one.startswith("--device")] == [*managers, *npus]
    mounts = [value for option, value in pairwise(options) if option == "--mount"]
    assert mounts == [
        "type=bind,source=/usr/local/Ascend/driver,target=/usr/local/Ascend/driver,readonly",
        "type=bind,source=/nfs,target=/shared",
        "type=bind,source=/models,target=/models,readonly",
    ]
    pairs = set(pairwise(options))
    assert pairs >= {
        ("--network", "host"),
        ("--shm-size", "7g"),
        ("--name", f"ascend-quant-{RUN}-1"),
        ("-e", f"ASCEND_QUANT_RUN={RUN}"),
        ("--workdir", "/shared/project"),
    }
    assert {"--rm", "-i", "--init"} <= set(options)


@pytest.mark.parametrize(
    ("stack", "name", "option"),
    [
        ("ascend-cann9.1", "addresses", "type=bind,source={file},target={file},readonly"),
        ("ascend-cann9.1", "bin", "type=bind,source={file},target={file},readonly"),
        ("ascend-cann9.1", "sbin", "type=bind,source={file},target={file},readonly"),
        ("cuda13", "rdma", "--device={file}"),
    ],
)
def test_what_not_every_host_has_is_given_where_it_is(tmp_path: Path, stack: str, name: str, option: str):
    machines, file = inventory(stack, image="img", project=None), tmp_path / "there"
    assert option.format(file=file) not in docker_said(machines, tmp_path, None, **{name: str(file)})
    file.touch()
    said = docker_said(machines, tmp_path, None, **{name: str(file)})
    assert said.index(option.format(file=file)) < said.index("img")


def test_a_container_of_gpus_has_them_all_and_one_of_cpus_none(tmp_path: Path):
    gpus = docker_said(inventory("cuda13", image="img", project=None), tmp_path, None)
    assert ("--gpus", "all") in set(pairwise(gpus))
    assert "--name" not in gpus and not [one for one in gpus if "ASCEND_QUANT_RUN" in one]
    cpus = docker_said(inventory("cpu", image="img", project=None), tmp_path, None)
    assert not [one for one in cpus if "gpu" in one or "device" in one]


def test_the_file_of_a_reward_must_be_there():
    for key in ("reward.custom_reward_function.path", "custom_reward_function.path"):
        assert "/r.py" in plan(extra=[f"{key}='/r.py'"]).nodes[1].needs
        assert f"{key}=r.py" in said(extra=[f"{key}=r.py"])
    own = plan("addition-int8", inventory("cpu")).nodes[0]  # a file of the recipe
    assert not [path for path in own.needs if path.endswith(".py")]


def test_data_files_must_have_what_verl_reads():
    assert plan().nodes[1].columns == ["prompt", "data_source", "reward_model"]
    assert plan(extra=["data.prompt_key=question"]).nodes[0].columns[0] == "question"
    assert plan(extra=["data.custom_cls.path=/x.py"]).nodes[0].columns == []
    assert plan(extra=["data.prompt_key=question"]).nodes[0].prompt == "question"


@pytest.mark.parametrize(
    ("extra", "rows"),
    [
        (["data.train_batch_size=16", "trainer.total_training_steps=null"], 16),
        (["data.train_batch_size=16", "trainer.total_training_steps=24", "trainer.total_epochs=1"], 24 * 16),
        (["data.train_batch_size=16", "trainer.total_training_steps=24", "trainer.total_epochs=5"], 5 * 16),
        (["data.custom_cls.path=/x.py"], None),
    ],
)
def test_the_rows_to_train_on_are_enough_for_the_steps_in_the_epochs(extra: list[str], rows: int | None):
    made = plan(extra=extra).nodes
    expected = {} if rows is None else {next(path for path in made[0].needs if "train" in path): rows}
    assert [node.least_rows for node in made] == [expected] * len(made)
    assert NodePlan.from_json(made[0].to_json()) == made[0]


@pytest.mark.parametrize(
    ("recipe", "extra", "size"),
    [
        ("addition-int8", ["actor_rollout_ref.actor.checkpoint.save_contents=[model]"], 4),  # float32
        ("qwen3-4b-fp8", [], 14),  # BF16 weights, float32 copies and two moments
    ],
)
def test_the_size_of_a_checkpoint(recipe: str, extra: list[str], size: int):
    machines = inventory(load(recipe).stack)
    head = plan(recipe, machines, extra=[*extra, "trainer.save_freq=5", "trainer.max_actor_ckpt_to_keep=3"]).nodes[0]
    assert (head.saving.parameter_bytes, head.saving.every, head.saving.keep) == (size, 5, 3)
    assert head.saving.steps == load(recipe).verl["trainer"]["total_training_steps"]
    assert NodePlan.from_json(head.to_json()) == head
    for other in ("-1", "0"):
        assert plan(recipe, machines, extra=[f"trainer.save_freq={other}"]).nodes[0].saving is None
    assert all(node.saving is None for node in plan(recipe, machines).nodes[1:])
