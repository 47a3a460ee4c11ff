"""`demo` that is asked to stop ends the training that it has started, as after Ctrl-C.

SIGTERM and SIGHUP end a Python process at once, unless it does something about it; a verl would train on alone.
"""

import os
import signal
import subprocess
import sys
import time

import psutil

# Real commands, but for what takes minutes: no warm-up, and in verl's place a process that sleeps.
COMMAND = """
from launch.demo import training, warmup
def make_start(choices, folder, on_update):
    folder.mkdir(parents=True)
    return 0.5
sleeps = "import os, pathlib, time; pathlib.Path({file!r}).write_text(str(os.getpid())); time.sleep(600)"
warmup.make_start, training.command = make_start, lambda *given: [{python!r}, "-c", sleeps]
from launch.commands import app
app({arguments!r})
"""


def test_its_training_ends_with_it(tmp_path):
    file = tmp_path / "pid"
    arguments = ["demo", "--arms", "int8", "--out", str(tmp_path / "out")]
    code = COMMAND.format(file=str(file), arguments=arguments, python=sys.executable)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    asked = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, env=environment)
    while not (file.is_file() and file.read_text()):
        assert asked.poll() is None, asked.stderr.read()
        time.sleep(0.1)
    verl = psutil.Process(int(file.read_text()))
    try:
        asked.send_signal(signal.SIGTERM)
        assert asked.wait(60) != 0
        assert not verl.is_running() or verl.status() == psutil.STATUS_ZOMBIE
    finally:
        if verl.is_running():
            verl.kill()
