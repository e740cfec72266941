"""The tests' own API server: no process of it outlives the tests, even when they are killed."""

import os
import subprocess
import sys
from pathlib import Path

from operator_kube import sweep_folders
from operator_run import eventually

HOLD = "from operator_kube import kube_apiserver\nwith kube_apiserver() as kube: print(kube.folder, flush=True); input()"


def processes_in(folder: str) -> list[str]:
    """Numbers of the processes whose command line names a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if folder.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_killed_tests_leave_no_process_and_their_folder_goes_with_the_next_run() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None
        folder = holder.stdout.readline().strip()
        sweep_folders()
        assert Path(folder, "admin.kubeconfig").exists(), "it is in use"
        assert len(processes_in(folder)) == 2, "etcd and the API server"
        holder.kill()
    eventually("no process of it", lambda: not processes_in(folder), 10)
    sweep_folders()
    assert not Path(folder).exists()
