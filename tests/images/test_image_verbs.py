"""What an image answers to each word on a root that is read only: as nobody in particular, and without /tmp."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.timeout(900)

AT_ONCE = 2
SOMEBODY = ("--user", "12345:12345", "--read-only", "--tmpfs", "/tmp:exec")
WITHOUT_TMP = ("--read-only",)
NO_TMP = "/tmp cannot be written by uid"


class Row(NamedTuple):
    """What is said, the status, and a part of what is answered; `without_tmp`: both where nothing can be written."""

    said: str
    status: int
    part: str
    without_tmp: tuple[int, str] | None = None


TABLE = [
    *(Row(said, 0, "usage: docker run") for said in ("", "help", "--help")),
    Row("smoke --help", 0, "--only"),
    Row("smoke --only nothing", 2, "nothing", (1, NO_TMP)),
    Row("demo --help", 0, "--steps"),
    Row("demo --steps 0", 2, "--steps", (1, NO_TMP)),
    Row("train no-such-recipe", 2, "no-such-recipe", (1, NO_TMP)),
    Row("stop no-such-run", 2, "no-such-run"),
    Row("recipe list", 0, "addition-int8"),
    Row("data no-such-data", 2, "no-such-data"),
    Row("doctor --set x=1", 2, "--recipe"),
    Row("test unit", 2, "test needs the sources"),
    Row("bench refit", 2, "bench needs the sources"),
    Row("fly", 2, "no verb 'fly'. Verbs: smoke doctor demo train"),
    Row("python --version", 0, "Python 3.11"),
]


@pytest.mark.parametrize("options", [SOMEBODY, WITHOUT_TMP], ids=["somebody", "without-tmp"])
def test_status_and_words(docker, cpu, options: tuple[str, ...]):
    """What fails says so in its last line; a command may say its usage before."""

    def ask(row: Row):
        return docker.tried(
            "run", "--rm", "--network=none", "--shm-size=2g", *options, cpu, *row.said.split(), timeout=300
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for row, done in zip(TABLE, pool.map(ask, TABLE), strict=True):
            status, part = row.without_tmp if row.without_tmp and options == WITHOUT_TMP else (row.status, row.part)
            text = (done.stdout + done.stderr).strip()
            assert done.returncode == status and part in text and "Traceback" not in text, (row, text)
            assert not status or part in text.splitlines()[-1], (row, text)


def test_every_verb_is_in_the_table(docker, cpu):
    (listed,) = [
        answer for answer in docker.tried("run", "--rm", cpu, "fly").stderr.splitlines() if "Verbs: " in answer
    ]
    verbs = listed.partition("Verbs: ")[2].partition(";")[0].split()
    assert set(verbs) <= {row.said.partition(" ")[0] for row in TABLE}


def test_the_doctor_says_what_a_read_only_root_lacks(docker, cpu):
    done = docker.tried("run", "--rm", "--read-only", "--network=none", "--shm-size=2g", cpu, "doctor", "--json")
    found = {one["check"]: one for one in json.loads(done.stdout)["hosts"][0]["findings"] if one["level"] == "error"}
    assert done.returncode == 1 and found.keys() == {"machine.tmp"}, done
    assert NO_TMP in found["machine.tmp"]["what"] and "--tmpfs" in found["machine.tmp"]["fix"]
