"""Records of runs and their logs: what they hold, which one `stop` takes, and names that may not leave the folder."""

import json
import subprocess

import psutil
import pytest
from cluster_cases import node_plan, plan_of

from launch.cluster import stop
from launch.cluster.logs import Logs
from launch.cluster.record import Record, find
from launch.errors import LaunchError


def test_a_record_holds_what_stop_needs_and_no_secret(tmp_path):
    node = node_plan(layers=[("shell", {"WANDB_API_KEY": "hush-hush"})])
    record = Record.create(plan_of(node), tmp_path)
    record.started(0, 17, {"name": "node1"})
    file = tmp_path / node.run / "run.json"
    told = json.loads(file.read_text())
    assert "hush" not in file.read_text()
    assert told["state"] == "running" and told["control"]["pid"] == psutil.Process().pid
    host = told["hosts"][0]
    assert (host["address"], host["local"], host["ray"], host["container"]) == ("127.0.0.1", True, 17, None)
    assert f"ASCEND_QUANT_RUN={node.run}" in host["start"]
    assert list(file.parent.iterdir()) == [file]


def test_the_control_process_is_known_by_its_start_time_too(tmp_path):
    record = Record.create(plan_of(node_plan()), tmp_path)
    assert record.control() == psutil.Process()
    record.data["control"]["started"] -= 60  # an earlier process had the same id
    assert record.control() is None
    record.data["control"] |= {"started": psutil.Process().create_time(), "host": "another-machine"}
    assert record.control() is None
    gone = subprocess.Popen(["true"])
    gone.wait()
    record.data["control"]["pid"] = gone.pid
    assert record.control() is None


def test_stop_takes_the_one_run_that_has_not_ended(tmp_path, capsys):
    with pytest.raises(LaunchError, match="no run to stop"):
        find(None, tmp_path)
    first, second = (Record.create(plan_of(node_plan()), tmp_path) for _ in range(2))
    with pytest.raises(LaunchError, match=f"{first.data['run']}, {second.data['run']}. Say which"):
        find(None, tmp_path)
    first.change(state="done")
    assert find(None, tmp_path).data["run"] == second.data["run"]
    assert find(first.data["run"], tmp_path).data["state"] == "done"
    assert stop.stop("nosuch", tmp_path) == 2
    errors = capsys.readouterr().err
    assert "no run 'nosuch'" in errors and second.data["run"] in errors


def test_stop_names_a_host_that_it_cannot_reach(tmp_path, capsys):
    record = Record.create(plan_of(node_plan()), tmp_path)
    record.data["control"]["pid"] = 2**22 + 1  # no process has it
    away = {"address": "localhost", "ssh": {"port": 1}, "local": False, "start": "true", "container": None}
    record.change(hosts=[*record.data["hosts"], away])
    assert stop.stop(None, tmp_path) == 1
    said = capsys.readouterr().out
    assert "127.0.0.1: nothing left" in said and "localhost: could not be ended: ssh is refused" in said
    assert find(None, tmp_path).data["state"] == "running"


def test_logs_of_hosts_lie_in_files_of_their_own(tmp_path):
    logs = Logs(tmp_path)
    logs.write("driver", "one")
    logs.write("2001:db8::1", "two")
    kept = logs.file("2001:db8::1", "old/raylet.out", "three")
    assert kept.read_text() == "three" and logs.lines == {"driver": 1, "2001:db8::1": 1}
    logs.close()
    again = Logs(tmp_path)
    again.write("driver", "four")
    again.close()
    files = {
        str(file.relative_to(tmp_path / "logs")): file.read_text() for file in tmp_path.rglob("*.*") if file.is_file()
    }
    assert files == {
        "driver.log": "one\nfour\n",
        "2001_db8__1.log": "two\n",
        "2001_db8__1/ray/old/raylet.out": "three",
    }


@pytest.mark.parametrize("name", ["../../outside", "/etc/outside", "a/../../b"])
def test_a_host_cannot_write_outside_its_folder(tmp_path, name):
    with pytest.raises(ValueError, match="sent a log file with the name"):
        Logs(tmp_path).file("192.0.2.1", name, "x")
    assert list(tmp_path.rglob("*outside*")) == []
