"""Status of incomplete labs."""

import json
from pathlib import Path

from sos_testbed.core.topology import BUILDERS, PathOptions
from sos_testbed.lifecycle import status
from sos_testbed.lifecycle.lab import Lab, Options, Programs, _first_facts


def test_status_of_an_interrupted_lab_is_complete(tmp_path: Path) -> None:
    path = PathOptions()
    programs = Programs(**dict.fromkeys(Programs.__annotations__, "/nowhere"))
    facts = _first_facts(Options(name="cut"), BUILDERS["figure8"].build(path, path), programs)
    (tmp_path / "lab.json").write_text(json.dumps(facts))
    found = status.collect(Lab(tmp_path))
    assert found["controllers"] == {"default": None} and found["error"]
    assert "edge1-ovs" in found["programs"] and not any(found["programs"].values())
    assert status.lines(found)[0].startswith("lab cut (figure8")
