"""A Ray cluster over HTTP: its token and version, the jobs of a run, and the actors that a stopped job leaves.

Every request has a limit: a head that has died is silent, and Ray's own client would wait for ever.
"""

import json
import logging
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from launch import LaunchError
from launch.recipes.stacks import pins

RUN = "ascend_quant_run"  # in the metadata of each job of a run
ANSWER_SECONDS = 5
UPLOAD_SECONDS = 120
STOP_SECONDS = 60
POLL_SECONDS = 0.5
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
KILL = """
import json, ray, sys
ray.init()
for name, namespace in json.loads(sys.argv[1]):
    ray.kill(ray.get_actor(name, namespace=namespace))
"""


class Cluster:
    """Client of a Ray cluster.

    Attributes:
        address: http://HOST:PORT of its dashboard.
        headers: of every request, with the token if the cluster asks for one.
        version: its Ray's.
    """

    def __init__(self, address: str, headers: dict[str, str], version: str) -> None:
        self.address, self.headers, self.version = address, headers, version

    def get(self, path: str, **parameters: Any) -> Any:
        """Return what a path answers. Raises requests' errors, of which all are OSErrors."""
        answer = requests.get(f"{self.address}{path}", headers=self.headers, params=parameters, timeout=ANSWER_SECONDS)
        answer.raise_for_status()
        return answer.json()

    def job(self, submission: str) -> dict[str, Any] | None:
        """Return what Ray says of a job; None if it has no such job."""
        try:
            return self.get(f"/api/jobs/{submission}")
        except requests.HTTPError as error:
            if error.response.status_code == requests.codes.not_found:
                return None
            raise

    def client(self) -> Any:
        """Return Ray's own client, which uploads files and follows logs."""
        from ray.job_submission import JobSubmissionClient

        logging.getLogger("ray").setLevel(logging.WARNING)  # else each upload is told
        return JobSubmissionClient(self.address, headers=dict(self.headers))

    def submit(
        self, submission: str, run: str, command: Sequence[str], environment: Mapping[str, Any] | None = None
    ) -> None:
        """Submit a job of a run.

        Args:
            environment: Ray's runtime environment.

        Raises:
            LaunchError: the cluster refuses it.
        """
        try:
            self.client().submit_job(
                submission_id=submission,
                entrypoint=shlex.join(command),
                runtime_env=dict(environment or {}),
                metadata={RUN: run},
            )
        except RuntimeError as error:
            raise LaunchError(f"{self.address} does not take the job {submission}: {error}") from error

    def wait(self, submission: str, seconds: float, ended: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Wait for the end of a job, and return what Ray says of it.

        Args:
            ended: whether the waiting is to end.

        Raises:
            LaunchError: the job has not ended in this time, or is not there.
        """
        deadline = time.monotonic() + seconds
        while (info := self.job(submission)) and info["status"] not in ENDED:
            if time.monotonic() > deadline or ended():
                raise LaunchError(f"the job {submission} is still {info['status']}")
            time.sleep(POLL_SECONDS)
        if info is None:
            raise LaunchError(f"{self.address} has no job {submission}")
        return info

    def stop(self, submission: str, ended: Callable[[], bool] = lambda: False) -> None:
        """Stop a job, wait for its end, and end the detached actors that outlive it; `ended` as for `wait`."""
        requests.post(
            f"{self.address}/api/jobs/{submission}/stop", headers=self.headers, timeout=ANSWER_SECONDS
        ).raise_for_status()
        self.wait(submission, STOP_SECONDS, ended)
        self.end_actors(submission)

    def stop_run(self, run: str) -> list[str]:
        """Stop the jobs of a run that have not ended, and return their ids."""
        jobs = [job for job in self.get("/api/jobs/") if (job["metadata"] or {}).get(RUN) == run]
        there = [job["submission_id"] for job in jobs if job["status"] not in ENDED]
        for submission in there:
            self.stop(submission)
        return there

    def end_actors(self, submission: str) -> None:
        """End the detached actors of a job that has ended, and wait until none of its actors lives.

        Raises:
            LaunchError: some live on.
        """
        driver = (self.job(submission) or {}).get("job_id")
        if driver is None:  # it ended before its driver was a client of Ray
            return
        deadline, told = time.monotonic() + STOP_SECONDS, False
        while alive := self.actors(driver):
            detached = [(one["name"], one["ray_namespace"]) for one in alive if one["is_detached"] and one["name"]]
            if detached and not told:
                told = True
                run = self.job(submission)["metadata"].get(RUN, "")
                self.submit(f"{submission}-actors", run, ["python", "-c", KILL, json.dumps(detached)])
            if time.monotonic() > deadline:
                names = ", ".join(one["class_name"] for one in alive)
                raise LaunchError(f"actors of {submission} live on after {STOP_SECONDS} s: {names}")
            time.sleep(POLL_SECONDS)

    def actors(self, driver: str) -> list[dict[str, Any]]:
        """List the actors of a driver that have not ended."""
        where = {"filter_keys": "job_id", "filter_predicates": "=", "filter_values": driver}
        answer = self.get("/api/v0/actors", detail="true", limit=10_000, **where)
        return [one for one in answer["data"]["result"]["result"] if one["state"] != "DEAD"]


def connect(address: str, stack: str | None = None, environment: Mapping[str, str] = os.environ) -> tuple[Cluster, str]:
    """Connect to a cluster; returns it, and a line if its Ray is not the stack's, else an empty one.

    Raises:
        LaunchError: nothing answers there, it is no Ray, or it asks for a token that this shell does not have.
    """
    where, headers = url(address), {}
    try:
        answer = requests.get(f"{where}/api/version", timeout=ANSWER_SECONDS)
        if answer.status_code == requests.codes.unauthorized:
            headers = {"Authorization": f"Bearer {token(where, environment)}"}
            answer = requests.get(f"{where}/api/version", headers=headers, timeout=ANSWER_SECONDS)
    except requests.RequestException as error:
        raise LaunchError(f"--ray {address}: no answer: {error}") from error
    if answer.status_code in (requests.codes.unauthorized, requests.codes.forbidden):
        raise LaunchError(f"--ray {address}: the cluster does not accept this token ({answer.status_code})")
    try:
        version = answer.json()["ray_version"]
    except (ValueError, KeyError, TypeError) as error:
        what = f"{answer.status_code} from {where}/api/version"
        raise LaunchError(f"--ray {address}: {what}: give the address of Ray's dashboard") from error
    wanted = pins(stack).packages.get("ray", version) if stack else version
    note = "" if version == wanted else f"the cluster has Ray {version}; stack {stack} has {wanted}"
    return Cluster(where, headers, version), note


def url(address: str) -> str:
    """Return the URL of a dashboard; HOST:PORT is http.

    Raises:
        LaunchError: it is none, or has a login, which the run's record would keep.
    """
    whole = address if "://" in address else f"http://{address}"
    parts = urlsplit(whole)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LaunchError(f"--ray {address}: give the address of Ray's dashboard, as http://HOST:8265")
    if "@" in parts.netloc:
        raise LaunchError("--ray: leave user and password out of the address; a token is read from RAY_AUTH_TOKEN")
    return whole.rstrip("/")


def token(where: str, environment: Mapping[str, str]) -> str:
    """Return the token of this shell, from where Ray's own clients read it.

    Raises:
        LaunchError: there is none.
    """
    if given := environment.get("RAY_AUTH_TOKEN", "").strip():
        return given
    named = environment.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path(environment.get("HOME", "~"), ".ray", "auth_token").expanduser()
    try:
        return file.read_text().strip()
    except OSError as error:
        raise LaunchError(
            f"{where} asks for a token: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file with it ({file}: "
            f"{error.strerror}). KubeRay keeps it in the Secret of the RayCluster's name, under auth_token"
        ) from error
