"""What SOS is for: a gigabyte each way over long and lossy links, close to what the wire carries.

client -- edge1 ==(500 Mbit/s)== core1 ------- edge2 -- server
            |                                    |
         agent1                               agent2
"""

from pathlib import Path

import pytest
from sos_testbed import lab as labs
from sos_testbed import measure
from sos_testbed.lab import Options
from sos_testbed.measure import Request
from sos_testbed.topology import PathOptions
from sos_testbed.web import PLAIN_PORT

RATE_BPS = 500_000_000
SIZE = 1_000_000_000
SHARE = 0.85  # of the wire's limit, the ramp of the first round trips included
SLOWEST_SHARE = 0.25  # a transfer slower than this has failed anyway: the bound on waiting
PLAIN_S = 10.0


@pytest.mark.parametrize(("rtt_us", "loss", "factor"), [(59_000, 0.0, 1.0), (164_000, 0.0, 2.0), (20_000, 0.01, 20.0)])
def test_goodput(tmp_path: Path, rtt_us: int, loss: float, factor: float) -> None:
    path = PathOptions(rate_bps=RATE_BPS, rtt_us=rtt_us, loss=loss)
    options = Options(path1=path, path2=path, name=f"goodput-{rtt_us}")
    shape = path.shape()
    net = labs.up(options)
    try:
        limit = measure.wire_limit(net, shape)
        print(limit)
        source = net.root / "www" / "1G"
        labs.make_payload(source, SIZE)
        max_time_s = SIZE * 8 / (limit.mbps * 1e6 * SLOWEST_SHARE)
        plain = measure.download(net, Request(port=PLAIN_PORT, path=source, max_time_s=PLAIN_S), tmp_path / "plain")
        down = measure.download(net, Request(path=source, max_time_s=max_time_s), tmp_path / "copy")
        print(f"plain {plain.mbps:.0f}, SOS download {down.mbps:.0f} Mbit/s")
        assert down.complete, down.error
        assert measure.same_bytes(source, tmp_path / "copy", complete=True)
        assert down.mbps >= SHARE * limit.mbps
        assert down.mbps >= factor * plain.mbps
        up = measure.upload(net, Request(path=source, max_time_s=max_time_s), "1G")
        print(f"SOS upload {up.mbps:.0f} Mbit/s")
        assert up.complete, up.error
        assert measure.same_bytes(source, measure.received(net, "server", "1G"), complete=True)
        assert up.mbps >= SHARE * limit.mbps
        for done in (down, up):
            assert done.client_saw == f"{measure.address(net, 'server')}:80"
            assert done.server_saw == done.client_address
    finally:
        net.down()
