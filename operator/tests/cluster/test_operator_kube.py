"""API server of the tests: none of its processes outlives the tests, even if the tests are killed."""

import os
import subprocess
import sys
from pathlib import Path

from operator_kube import sweep_folders
from operator_run import eventually

HOLD = "from operator_kube import kube_apiserver\nwith kube_apiserver() as kube: print(kube.folder, flush=True); input()"


def processes_in(folder: str) -> list[str]:
    """Ids of the processes whose command line contains a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if folder.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_killed_tests_leave_no_process_and_the_next_run_cleans_up() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None
        folder = holder.stdout.readline().strip()
        sweep_folders()
        assert Path(folder, "admin.kubeconfig").exists(), "a folder in use is not swept"
        assert len(processes_in(folder)) == 2, "etcd and the API server run"
        holder.kill()
    eventually("no process of the killed tests", lambda: not processes_in(folder), 10)
    sweep_folders()
    assert not Path(folder).exists()
