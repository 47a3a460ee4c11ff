"""vllm-ascend's own casts to FRACTAL_NZ are off on every Ascend stack, by what its version reads."""

import pytest
from test_recipe_overrides import overrides

from launch.environment import rows
from launch.environment.table import ASCEND
from launch.recipes import versions
from launch.recipes.versions import nz_settings, reads_variable, version_of

SETTING = "+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.weight_nz_mode"
VARIABLE = "VLLM_ASCEND_ENABLE_NZ"


@pytest.mark.parametrize(
    ("version", "reads"),
    [("0.10.1rc1", True), ("0.23.0.post1", True), ("0.27.1rc1", False), ("0.30.0rc2", False), ("1.0.0", False)],
)
def test_which_versions_read_the_variable(version, reads):
    assert reads_variable(version) == reads


@pytest.mark.parametrize("stack", ASCEND)
def test_each_ascend_stack_has_the_one_that_its_version_reads(stack):
    variable = {row.name: row.value for row in rows(stack)}.get(VARIABLE)
    setting = [*nz_settings(stack).values()]
    assert (variable, setting) == (("0", []) if reads_variable(version_of(stack)) else (None, [0]))


@pytest.mark.parametrize("stack", ["cpu", "cuda13"])
def test_others_have_neither(stack):
    assert version_of(stack) is None and nz_settings(stack) == {}
    assert VARIABLE not in [row.name for row in rows(stack)]


@pytest.mark.parametrize("scheme", ["int8", "bf16"])  # the casts are vllm-ascend's, with or without our plugin
def test_a_newer_version_is_told_on_the_command_line(tmp_path, monkeypatch, scheme):
    changes = {"stack": "ascend-cann9.1", "rollout": {"scheme": scheme}}
    assert SETTING not in overrides(tmp_path, **changes)
    monkeypatch.setattr(versions, "version_of", lambda stack: "0.30.0rc2")
    assert overrides(tmp_path, **changes)[SETTING] == "0"
