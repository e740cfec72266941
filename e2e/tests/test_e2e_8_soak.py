"""Mixed load in rounds for an hour, or SOS_E2E_SOAK_MINUTES: SOS leaks no memory, entry, socket or file.

After each round traffic pauses, and the resources of all parts are sampled (out/e2e/soak.json). Failure rule: observation/growth.py.
"""

import json
import time

from conftest import Lab
from sos_e2e.observation import growth, workload
from sos_e2e.observation.load import Load
from sos_e2e.observation.sampler import Record, look
from sos_e2e.run import say, wait_for

QUIET_S = 5.0
"""Pause after a round, until sessions of departed hosts have ended."""
ROUND_S = 180.0
"""Time limit of a round."""

# Mixed load beside the long download and the ten new connections per second of sos_e2e.observation.load: a fast download, a plain
# download, abandoned downloads, connections without an answer, and silent connections.
MIXED = f"""
cd /tmp && rm -f mixed.done
( curl -s -o fast -m 100 http://{workload.SERVER}:80/file; sha256sum fast > fast.sum ) &
curl -s -o /dev/null -m 8 http://{workload.SERVER}:8080/file &
for n in 1 2 3 4 5 6 7 8 9 10 11 12; do
  curl -s -o /dev/null -m 1 http://{workload.SERVER}:80/file &
  curl -s -o /dev/null -m 3 http://{workload.SERVER}:443/ &
  bash -c 'exec 3<>/dev/tcp/{workload.SERVER}/80; sleep 15' &
  sleep 1
done
wait
touch mixed.done
"""
IN_THE_BACKGROUND = "setsid bash -c '{}' > /dev/null 2>&1 < /dev/null &".format(MIXED.replace("'", "'\\''"))


def a_round(lab: Lab, digest: str) -> None:
    """Run one round of load, and assert that all downloads are complete."""
    load = Load(lab.kube)
    lab.kube.exec(workload.NAMESPACE, "client", "sh", "-c", IN_THE_BACKGROUND)
    outcome = load.finish(ROUND_S)
    assert (outcome.status, outcome.sha256) == (0, digest), outcome.summary()
    assert not [probe for probe in outcome.probes if probe.status], outcome.summary()
    wait_for("the end of the mixed load", lambda: client(lab, "ls /tmp/mixed.done 2>/dev/null || true"), ROUND_S)
    assert client(lab, "cat /tmp/fast.sum").split()[0] == digest


def client(lab: Lab, command: str) -> str:
    return lab.kube.exec(workload.NAMESPACE, "client", "sh", "-c", command)


def test_nothing_grows_under_mixed_load(lab: Lab, accelerated: tuple[Lab, str]) -> None:
    began, minutes, record = time.monotonic(), lab.settings.soak_minutes, Record()
    say(f"soak: {minutes:g} minutes; SOS_E2E_SOAK_MINUTES sets another duration")
    while (now := time.monotonic() - began) < minutes * 60:
        a_round(lab, accelerated[1])
        time.sleep(QUIET_S)
        record.add(time.monotonic() - began, look(lab.kube))
        (lab.settings.out / "soak.json").write_text(json.dumps(record.series, indent=1) + "\n")
        say(f"soak: {now / 60:.0f} of {minutes:g} minutes")
    said = growth.leaks(record.series)
    assert not said, "\n".join(said)
