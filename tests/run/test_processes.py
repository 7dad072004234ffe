"""What a run has started is found and ended by its session."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from millstream.run.spark.processes import kill_session

# A leader whose child ignores hangups and has a child of its own, in another process group.
TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], process_group=0)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_all_processes_of_a_session_end_also_those_whose_parent_is_gone() -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TREE!r}])"
    leader = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert leader.stdout is not None
    grandchild = psutil.Process(int(leader.stdout.readline()))
    middle = grandchild.parent()
    assert middle is not None
    middle.kill()
    kill_session(leader.pid)
    leader.wait(10)
    leader.stdout.close()
    _, alive = psutil.wait_procs([grandchild, middle], timeout=10)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_our_own_session_is_never_ended() -> None:
    kill_session(os.getsid(0))
    kill_session(os.getpid())
