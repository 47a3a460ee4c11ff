"""The archive of a bug report: what is in it, and that secrets of this environment and of logs are not."""

import json
import stat
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_cases import node_plan, plan_of
from typer.testing import CliRunner

import launch.doctor.hosts
from launch import bundle
from launch.cli import app
from launch.cluster.record import Logs, Record
from launch.doctor.checking import Finding, HostReport, Report
from launch.variables import without_secrets_in

REPORT = Report([HostReport("this machine", [Finding("warning", "system.memory", "12 GiB", "buy more")])])
OWN = {
    "HF_TOKEN": "hf_AbCdEf123456",
    "NCCL_DEBUG": "INFO",
    "HTTPS_PROXY": "http://me:word@proxy:80",
    "SHELL": "/bin/sh",
}


def read(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {entry.name: archive.extractfile(entry).read().decode() for entry in archive.getmembers()}


@pytest.fixture
def record(tmp_path) -> Record:
    node = node_plan(layers=[("shell", {"WANDB_API_KEY": "hush-hush"})])
    record = Record.create(replace(plan_of(node)), tmp_path / "runs")
    logs = Logs(record.folder)
    logs.write("driver", "env_vars.WANDB_API_KEY=0123456789abcdef step 3 of 9, total_tokens=512, max_token_len=4096")
    logs.write("driver", "proxy http://me:word@proxy:80 was asked with hf_AbCdEf123456")
    logs.file("node1", "old/raylet.out", "x" * (bundle.LAST_BYTES // 2) + "\n" + "y\n" * bundle.LAST_BYTES)
    logs.close()
    return record


def test_it_holds_versions_findings_and_the_ends_of_logs(tmp_path, record):
    file = tmp_path / "a.tar.gz"
    names = bundle.write(file, REPORT, record, OWN)
    files = read(file)
    assert set(files) == {f"ascend-quant/{name}" for name in names}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    about = json.loads(files["ascend-quant/about.json"])
    assert (
        about["packages"]["torch"] and about["variables"]["NCCL_DEBUG"] == "INFO" and "SHELL" not in about["variables"]
    )
    assert json.loads(files["ascend-quant/doctor.json"])["hosts"][0]["findings"][0]["check"] == "system.memory"
    assert json.loads(files["ascend-quant/run/run.json"])["run"] == record.told.run
    tail = files["ascend-quant/run/logs/node1/ray/old/raylet.out"].splitlines()
    assert "x" not in "".join(tail[1:]) and sum(len(line) + 1 for line in tail[1:]) >= bundle.LAST_BYTES - 4


def test_no_secret_is_in_it(tmp_path, record):
    file = tmp_path / "a.tar.gz"
    bundle.write(file, REPORT, record, OWN)
    text = "".join(read(file).values())
    assert not [secret for secret in ("hush-hush", "0123456789abcdef", "hf_AbCdEf123456", "me:word") if secret in text]
    assert "step 3 of 9, total_tokens=512, max_token_len=4096" in text


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("export HF_TOKEN=abc123", "abc123"),
        ('{"api_key": "sk-17", "n": 5}', "sk-17"),
        ("+ray_kwargs.env_vars.AWS_SECRET_ACCESS_KEY='a/b+c'", "a/b+c"),
        ("Authorization: Bearer eyJ.x-y_z=", "eyJ"),
        ("password: 12345678", "12345678"),
        ("+runtime_env.env_vars={A: 1, HF_TOKEN: topsecretA}", "topsecretA"),
        ("env_vars={HF_TOKEN: 'a b,c'}", "b,c"),
        ('say "HF_TOKEN=\\"abc12\\""', "abc12"),
        ('environment={MY_TOKEN: "sekret1', "sekret1"),
        ("env_vars.HF_TOKEN_2=abc123", "abc123"),
        ("WANDB_API_KEY_PROD=123456", "123456"),
        ("HF TOKEN=topsecretx", "topsecretx"),
        ("cloned from https://user:pass@host/x.git", "user:pass"),
    ],
)
def test_secrets_by_name(line, secret):
    assert secret in line and secret not in without_secrets_in(line, [])


@pytest.mark.parametrize(
    "line",
    [
        "KeyError: 'layers.0'",
        "token=17 of 512",
        "PWD=/home/me",
        "first_key: 3",
        "max_token_len={8: 16}",
        "rollout.max_num_batched_tokens=8192",
    ],
)
def test_what_is_no_secret_stays(line):
    assert without_secrets_in(line, []) == line


def test_a_full_disk_leaves_no_half_archive(tmp_path, record, full_disk, monkeypatch):
    monkeypatch.setattr(bundle, "commit", lambda: None)  # git could not write either, and would leave its lock
    with full_disk(), pytest.raises(OSError, match=r"large|space"):
        bundle.write(tmp_path / "a.tar.gz", REPORT, record, OWN)
    assert not (tmp_path / "a.tar.gz").exists()


def test_the_command(tmp_path, monkeypatch, record):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch.doctor.hosts, "examine", lambda *given, **more: REPORT)
    done = CliRunner().invoke(app, ["bundle", record.told.run, "--out", "b.tar.gz"])
    assert done.exit_code == 0 and "ascend-quant/run/logs/driver.log" in read(tmp_path / "b.tar.gz"), done.output
    again = CliRunner().invoke(app, ["bundle", "--out", "b.tar.gz"])
    assert again.exit_code == 2 and "b.tar.gz" in again.stderr
    assert CliRunner().invoke(app, ["bundle", "none-such"]).exit_code == 2
    assert CliRunner().invoke(app, ["bundle", "--out", "missing/b.tar.gz"]).exit_code == 2
    full = CliRunner().invoke(app, ["bundle"])
    assert full.exit_code == 0 and len(list(tmp_path.glob("ascend-quant-*.tar.gz"))) == 1
