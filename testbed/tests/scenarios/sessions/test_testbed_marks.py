"""DSCP and TTL arrive at the peer host unchanged while a host changes them, compared with plain TCP."""

import json
import subprocess
import sys

from conftest import PROGRAMS, accepted
from marks import CLIENT, LAST, SERVER
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

PROGRAM = str(PROGRAMS / "marks.py")
COVERED, PLAIN = 5161, 6161


def seen(net: Lab, port: int) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Marks of the segments received at the server and at the client, by message."""
    serving = subprocess.Popen(net.exec_argv("server", (sys.executable, PROGRAM, "serve", str(port))), stdout=subprocess.PIPE, text=True)
    try:
        measure.wait_listening(net, "server", port)
        argv = net.exec_argv("client", (sys.executable, PROGRAM, "ask", measure.address(net, "server"), str(port)))
        asked = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
        served, _ = serving.communicate(timeout=60)
    finally:
        serving.kill()
        serving.wait()
    return json.loads(served), json.loads(asked.stdout)


def test_each_segment_arrives_with_the_marks_of_its_host(net: Lab) -> None:
    plain = seen(net, PLAIN)
    before = accepted(net)
    covered = seen(net, COVERED)
    assert accepted(net) - before == 1
    assert plain[0] == {words.decode(): [dscp, ttl] for words, dscp, ttl in CLIENT} | {"SYN": [16, 70], "FIN": list(LAST)}
    assert plain[1] == {words.decode(): [dscp, ttl] for words, dscp, ttl in SERVER} | {"SYN": [0, 64], "FIN": [0, 64]}
    assert covered == plain
