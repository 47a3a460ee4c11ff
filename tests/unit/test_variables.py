"""Secrets in what is printed: hidden by the name before the value, and nothing else is."""

import pytest

from launch.environment.variables import shown, without_secrets_in


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ('{"api_key": "sk-17", "n": 5}', "sk-17"),
        ("+ray_kwargs.env_vars.AWS_SECRET_ACCESS_KEY='a/b+c'", "a/b+c"),
        ("Authorization: Bearer eyJ.x-y_z=", "eyJ"),
        ("+runtime_env.env_vars={A: 1, HF_TOKEN: topsecretA}", "topsecretA"),
        ("env_vars={HF_TOKEN: 'a b,c'}", "b,c"),
        ('say "HF_TOKEN=\\"abc12\\""', "abc12"),
        ('environment={MY_TOKEN: "sekret1', "sekret1"),
        ("env_vars.HF_TOKEN_2=abc123", "abc123"),
        ("cloned from https://user:pass@host/x.git", "user:pass"),
    ],
)
def test_secrets_by_name(line, secret):
    assert secret in line and secret not in without_secrets_in(line)


@pytest.mark.parametrize(
    "line",
    [
        "KeyError: 'layers.0'",
        "token=17 of 512",
        "PWD=/home/me",
        "max_token_len={8: 16}",
        "rollout.max_num_batched_tokens=8192",
    ],
)
def test_what_is_no_secret_stays(line):
    assert without_secrets_in(line) == line


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        *((name, "hunter2", "***") for name in ("HF_TOKEN", "WANDB_API_KEY", "DB_PASSWD", "AWS_CREDENTIALS", "MY_PWD")),
        ("HTTPS_PROXY", "http://u:p/w@h:3128/x", "http://***@h:3128/x"),
        *((name, "4", "4") for name in ("TOKENIZERS_PARALLELISM", "HCCL_BUFFSIZE", "max_num_batched_tokens")),
    ],
)
def test_a_variable_is_shown_by_its_name(name, value, told):
    assert shown(name, value) == told
