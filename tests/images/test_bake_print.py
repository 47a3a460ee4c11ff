"""`docker buildx bake --print` of every target, and that no argument is one which its Dockerfile would drop unread."""

import json
import re

from launch.root import ROOT


def test_every_target_is_read_and_passes_what_its_dockerfile_takes(docker):
    done = docker.docker("buildx", "bake", f"--file={ROOT}/docker/docker-bake.hcl", "--print", "all", cwd=ROOT)
    targets = json.loads(done.stdout)["target"]
    assert {name.partition("-")[0] for name in targets} == {"cpu", "cuda13", "ascend"}
    assert "warning" not in done.stderr.lower(), done.stderr
    for name, target in targets.items():
        takes = re.findall(r"(?m)^ARG (\w+)", (ROOT / target["dockerfile"]).read_text())
        assert set(target["args"]) <= set(takes), name
        assert {"BASE", "STACK", "VERSION", "REVISION"} <= set(target["args"]), name
