"""A Ray cluster over HTTP: its token and version, the jobs of a run, and the actors that a stopped job leaves alive.

Every request has a timeout, which Ray's own client lacks, since a dead head does not answer at all.
"""

import json
import logging
import os
import secrets
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from ray.dashboard.modules import dashboard_sdk
from ray.dashboard.modules.job import sdk
from ray.job_submission import JobSubmissionClient

from launch import LaunchError

RUN = "ascend_quant_run"  # in the metadata of each job of a run
ANSWER_SECONDS, UPLOAD_SECONDS, STOP_SECONDS = 5, 120, 60
POLL_SECONDS = 0.5
AGENT_SECONDS, NO_AGENT = 60, "No available agent"  # the words of Ray's dashboard
OTHERS = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")  # these override the address that Ray's client is given
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
KILL = """
import contextlib, json, ray, sys
ray.init()
for name, namespace in json.loads(sys.argv[1]):
    with contextlib.suppress(ValueError):  # it has ended meanwhile
        ray.kill(ray.get_actor(name, namespace=namespace))
"""


class Cluster:
    """Client of a Ray cluster.

    Attributes:
        address: URL of the dashboard.
        headers: headers of every request, with the token if the cluster requires one.
        version: version of Ray on the cluster.
        client: Ray's client, which uploads files and follows logs.
    """

    def __init__(self, address: str, headers: dict[str, str], version: str) -> None:
        self.address, self.headers, self.version = address, headers, version
        for name in OTHERS:
            os.environ.pop(name, None)
        for name in ("ray", dashboard_sdk.__name__, sdk.__name__):  # they log uploads and closed connections
            logging.getLogger(name).setLevel(logging.WARNING)
        self.client = JobSubmissionClient(address, headers=dict(headers))
        self.client._do_request = partial(self.client._do_request, timeout=UPLOAD_SECONDS)

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON at a path; raise requests' errors, which are OSErrors."""
        answer = requests.get(f"{self.address}{path}", headers=self.headers, params=parameters, timeout=ANSWER_SECONDS)
        answer.raise_for_status()
        return answer.json()

    def listed(self, kind: str, **where: str) -> list[dict[str, Any]]:
        """List the entries of a kind, such as nodes, in Ray's state API; `where` has parameters that filter them."""
        return self.get(f"/api/v0/{kind}", detail="true", limit=10_000, **where)["data"]["result"]["result"]

    def job(self, submission: str) -> dict[str, Any] | None:
        """Return Ray's description of a job; None if there is no such job."""
        try:
            return self.get(f"/api/jobs/{submission}")
        except requests.HTTPError as error:
            if error.response.status_code == requests.codes.not_found:
                return None
            raise

    def submit(self, submission: str, run: str, command: Sequence[str], **runtime_env: Any) -> None:
        """Submit a job of a run; right after the start of Ray, wait for the agent that runs it.

        Raises:
            LaunchError: the cluster refuses it.
        """
        job = {"submission_id": submission, "entrypoint": shlex.join(command), "metadata": {RUN: run}}
        deadline = time.monotonic() + AGENT_SECONDS
        while True:
            try:
                self.client.submit_job(**job, runtime_env=runtime_env)
                return
            except RuntimeError as error:
                if NO_AGENT not in str(error) or time.monotonic() > deadline:
                    raise LaunchError(f"{self.address} refuses the job {submission}: {error}") from error
            time.sleep(POLL_SECONDS)

    def wait(self, submission: str, seconds: float, given_up: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Wait until a job has ended and return its description; give up if `given_up` returns True.

        Raises:
            LaunchError: the job has not ended within `seconds`, or does not exist.
        """
        deadline = time.monotonic() + seconds
        while (info := self.job(submission)) and info["status"] not in ENDED:
            if time.monotonic() > deadline or given_up():
                raise LaunchError(f"job {submission} is still {info['status']}")
            time.sleep(POLL_SECONDS)
        if info is None:
            raise LaunchError(f"{self.address} has no job {submission}")
        return info

    def stop(self, submission: str, given_up: Callable[[], bool] = lambda: False) -> None:
        """Stop a job, wait for it, and end the actors that outlive it; see `wait` for `given_up`."""
        self.ask_to_stop(submission)
        self.end_actors(self.wait(submission, STOP_SECONDS, given_up))

    def ask_to_stop(self, submission: str) -> None:
        """Tell Ray to stop a job, without waiting for it."""
        where = f"{self.address}/api/jobs/{submission}/stop"
        requests.post(where, headers=self.headers, timeout=ANSWER_SECONDS).raise_for_status()

    def stop_run(self, run: str) -> list[str]:
        """Stop the jobs of a run, end the actors of those that have ended already, and return the ids of the others."""
        jobs = [job for job in self.get("/api/jobs/") if (job["metadata"] or {}).get(RUN) == run]
        found = [job["submission_id"] for job in jobs if job["status"] not in ENDED]
        for job in jobs:
            if job["submission_id"] in found:
                self.stop(job["submission_id"])
            else:
                self.end_actors(job)
        return found

    def end_actors(self, ended: Mapping[str, Any]) -> None:
        """Wait until no actor of an ended job is alive, and kill detached actors, which Ray leaves alive.

        Raises:
            LaunchError: some actors are still alive after STOP_SECONDS.
        """
        if ended["job_id"] is None:  # the driver never connected to Ray
            return
        deadline, killer = time.monotonic() + STOP_SECONDS, None
        of_job = {"filter_keys": "job_id", "filter_predicates": "=", "filter_values": ended["job_id"]}
        while alive := [one for one in self.listed("actors", **of_job) if one["state"] != "DEAD"]:
            detached = [(one["name"], one["ray_namespace"]) for one in alive if one["is_detached"]]
            if detached and killer is None:
                killer = f"{ended['submission_id']}-actors-{secrets.token_hex(2)}"  # an earlier one may have failed
                self.submit(killer, ended["metadata"][RUN], ["python", "-c", KILL, json.dumps(detached)])
            if time.monotonic() > deadline:
                names = ", ".join(one["class_name"] for one in alive)
                raise LaunchError(f"actors of {ended['submission_id']} are alive after {STOP_SECONDS} s: {names}")
            time.sleep(POLL_SECONDS)


def connect(address: str, environment: Mapping[str, str] = os.environ) -> Cluster:
    """Connect to a cluster.

    Raises:
        LaunchError: no Ray dashboard answers at the address, or it requires a token that this shell lacks.
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
        raise LaunchError(f"--ray {address}: the cluster rejects the token of this shell ({answer.status_code})")
    try:
        version = answer.json()["ray_version"]
    except (ValueError, KeyError, TypeError) as error:
        what = f"{where}/api/version answers {answer.status_code}, not as Ray does"
        raise LaunchError(f"--ray {address}: {what}: give the address of Ray's dashboard") from error
    return Cluster(where, headers, version)


def url(address: str) -> str:
    """Return the URL of a dashboard; HOST:PORT becomes http://HOST:PORT.

    Raises:
        LaunchError: it is not an HTTP address, or it contains a password, which the run's record would keep.
    """
    whole = address if "://" in address else f"http://{address}"
    parts = urlsplit(whole)
    if "@" in parts.netloc:
        raise LaunchError("--ray: remove user and password from the address; a token is read from RAY_AUTH_TOKEN")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LaunchError(f"--ray {address}: give the address of Ray's dashboard, as http://HOST:8265")
    return whole.rstrip("/")


def token(where: str, environment: Mapping[str, str]) -> str:
    """Return the token of this shell, from the places where Ray's own clients read it.

    Raises:
        LaunchError: this shell has no token.
    """
    if given := environment.get("RAY_AUTH_TOKEN", "").strip():
        return given
    file = Path(environment.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        return file.read_text().strip()
    except OSError as error:
        raise LaunchError(
            f"{where} requires a token: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that contains it ({file}: "
            f"{error.strerror}). KubeRay keeps it in the Secret named like the RayCluster, under auth_token"
        ) from error
