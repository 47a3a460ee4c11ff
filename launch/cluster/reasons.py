"""Why a host's channel closed, in one line, from the exit code and the last lines that it wrote to stderr."""

SSH_FAILED = 255
NOT_FOUND, NOT_EXECUTABLE = 127, 126
SSH = (  # what OpenSSH's client writes, and what that means
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its ssh host key has changed: if it should, run `ssh-keygen -R {host}`",
    ),
    ("Host key verification failed", "its ssh host key is not known here: run `ssh {host}` once and accept it"),
    ("Permission denied", "ssh: no key is accepted: check user and key in the inventory, and ssh-agent here ({said})"),
    ("Connection refused", "ssh is refused: is sshd running there, on this port? ({said})"),
    ("timed out", "ssh has no answer: is the host up, and port open? ({said})"),
    ("Could not resolve hostname", "ssh: the name is not known here: write its address, or correct it ({said})"),
    ("No route to host", "ssh: there is no route to it, or it is down ({said})"),
    ("Network is unreachable", "ssh: its network is not reachable from here ({said})"),
    ("not responding", "the ssh connection was lost ({said})"),
    ("closed by remote host", "the host closed the ssh connection: did it shut down? ({said})"),
    ("Broken pipe", "the ssh connection was lost ({said})"),
)
PASSING = ("Connection refused", "timed out", "No route to host", "Network is unreachable", "closed by remote host")
THERE = (  # what the shell, Python or Docker there write
    ("No module named launch", "this project is not there: check `project` in the inventory ({said})"),
    ("No module named", "a Python package is missing there: is this the Python of the stack? ({said})"),
    ("cd:", "the project's folder is not there: check `project` in the inventory ({said})"),
    ("Cannot connect to the Docker daemon", "Docker does not run there, or this user may not use it ({said})"),
    ("No such image", "the container image is not there: pull it ({said})"),
    ("Unable to find image", "the container image is not there, and could not be pulled ({said})"),
    ("Error response from daemon", "Docker could not start the container ({said})"),
)


def reason(host: str, code: int, stderr: str) -> str:
    """Why the command on a host ended with `code`."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith(("@", "Warning:"))]
    said = lines[-1] if lines else "no message"
    for known in (SSH if code == SSH_FAILED else ()) + THERE:
        if line := next((line for line in [*reversed(lines), stderr] if known[0] in line), None):
            return known[1].format(host=host, said=line if line in lines else said)
    if code in (NOT_FOUND, NOT_EXECUTABLE):
        return f"the command cannot be run there: {said}: check `python` and `project` in the inventory"
    if code < 0:
        return f"its process was ended by signal {-code} ({said})"
    return f"its process ended with code {code}: {said}"


def may_pass(code: int, stderr: str) -> bool:
    """Whether waiting may help: a host that is still starting refuses, or does not answer yet."""
    return code == SSH_FAILED and any(text in stderr for text in PASSING)
