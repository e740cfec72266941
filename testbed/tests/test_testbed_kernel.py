"""`make test-kernel` without a virtual machine: choice of the kernel, its modules, the list of scenarios, the console, the verdict."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from sos_kernel import boot, cli, debian, initramfs, machine, report, scenarios
from sos_kernel.debian import KernelError
from sos_kernel.machine import BOOTED, KVM, TCG, Machine

TESTBED = Path(__file__).resolve().parents[1]
SCENARIOS = TESTBED / "tests" / "scenarios"
MACHINE = Machine(image=Path("/k/vmlinuz"), initial=Path("/o/initial.gz"), results=Path("/o"), processors=64)
BROKEN = "\ndef test_broken():\n    assert not RAN\n    raise AssertionError\n"
LISTED = scenarios.parse((TESTBED / "kernel" / "scenarios.txt").read_text(encoding="utf-8"))

SHOWN = """Package: linux-image-amd64
Version: 6.12.95-1~bpo12+1
Provides: linux-image-generic, wireguard-modules (= 1.0.0)
Depends: linux-image-6.12.95+deb12-amd64 (= 6.12.95-1~bpo12+1)
"""


def test_newest_kernel_is_the_dependency_of_its_metapackage() -> None:
    assert debian.parse_depends(SHOWN) == ("linux-image-6.12.95+deb12-amd64", "6.12.95-1~bpo12+1")
    assert debian.parse_depends("Depends: linux-image-6.1.0-57-amd64") == ("linux-image-6.1.0-57-amd64", "")
    with pytest.raises(KernelError, match="names no kernel"):
        debian.parse_depends("Package: linux-image-amd64\n")


@pytest.mark.parametrize("name", sorted(debian.SUITES))
def test_sources_of_a_kernel_are_signed_and_of_one_release(name: str) -> None:
    lines = debian.sources(name).splitlines()
    assert lines and all("signed-by=" in line and "bookworm" in line for line in lines)
    assert all(("backports" in line) is (name == "backports") for line in lines), "else apt would choose the other kernel"
    with pytest.raises(KernelError, match=r"no kernel '5\.10'; there are 6.1, backports"):
        debian.sources("5.10")


def test_packages_come_from_the_machines_own_mirrors(tmp_path: Path) -> None:
    assert debian.mirrors(tmp_path) == debian.MIRRORS
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("# deb http://old.example/debian bookworm main\ndeb https://one.example/debian bookworm main\n")
    (tmp_path / "sources.list.d" / "more.sources").write_text("Types: deb\nURIs: http://two.example/debian-security/\n")
    assert debian.mirrors(tmp_path) == {"debian": "https://one.example/debian", "debian-security": "http://two.example/debian-security"}
    assert "https://one.example/debian bookworm main" in debian.sources("6.1", tmp_path)


def test_modules_are_inserted_after_those_they_need_and_once() -> None:
    listings = ["insmod /k/9pnet.ko \ninsmod /k/9p.ko cache=1\n", "builtin virtio_pci\n", "insmod /k/9pnet.ko\ninsmod /k/overlay.ko.xz\n"]
    assert [str(path) for path in initramfs.parse_order(listings)] == ["/k/9pnet.ko", "/k/9p.ko", "/k/overlay.ko.xz"]


def test_virtual_machine_reads_the_hosts_files_and_writes_only_the_results() -> None:
    words = machine.command(MACHINE, TCG)
    shares = [word for word in words if word.startswith("local,")]
    assert [("path=/," in share, "readonly=on" in share) for share in shares] == [(True, True), (False, False)]
    assert words[words.index("-nic") + 1] == "none"


def test_clock_of_an_emulated_machine_follows_its_instructions_on_one_processor() -> None:
    """With several processors, the clock would also run while one of them waits for its turn."""
    emulated, virtual = machine.command(MACHINE, TCG), machine.command(MACHINE, KVM)
    assert emulated[emulated.index("-icount") + 1].startswith("shift=0,")
    assert emulated[emulated.index("-smp") + 1] == "1"
    assert "clocksource=tsc" in emulated[emulated.index("-append") + 1]
    assert "-icount" not in virtual and virtual[virtual.index("-smp") + 1] == str(KVM.processors)


def test_groups_run_one_after_the_other_with_their_own_modules_state(tmp_path: Path) -> None:
    """Two groups of one module, which counts its tests in a global: each group counts from one, and a failed group is reported."""
    (tmp_path / "test_counted.py").write_text("RAN = []\n\ndef test_one():\n    RAN.append(1)\n    assert len(RAN) == 1\n" + BROKEN)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    statuses = []
    for second in ("test_one", "test_broken"):
        for number, test in enumerate(("test_one", second)):
            words = ("-q", f"--junitxml={tmp_path}/{number}.xml", f"{tmp_path}/test_counted.py::{test}")
            (tmp_path / f"group-{number}.arguments").write_text("".join(f"{word}\n" for word in words))
        argv = (sys.executable, str(TESTBED / "kernel" / "guest.py"), *map(str, sorted(tmp_path.glob("group-*.arguments"))))
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        statuses.append(subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode)
        counted = [report.parse((tmp_path / f"{number}.xml").read_text()) for number in (0, 1)]
        assert [len(outcomes) for outcomes in counted] == [1, 1]
    assert statuses == [0, 1]


def test_settings_reach_the_guest_unchanged(tmp_path: Path) -> None:
    value = "/a b/'c'\"$HOME`id`\\n"
    (tmp_path / "settings").write_text(machine.settings({"TOP": value, "SOS_DATAPATH": "System"}), encoding="utf-8")
    argv = ("bash", "-c", '. "$0"; printf "%s" "$TOP"', str(tmp_path / "settings"))
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == value


def test_every_listed_scenario_exists() -> None:
    for group in LISTED:
        for test in group.tests:
            file, _, function = test.partition("::")
            text = (SCENARIOS / file).read_text(encoding="utf-8")
            assert not function or f"def {function.partition('[')[0]}(" in text, f"[{group.name}] {test}"


def test_required_concerns_have_a_group_of_scenarios() -> None:
    tests = "\n".join(test for group in LISTED for test in group.tests)
    concerns = ("transfer", "fail_open", "rewrite", "proactive", "balance", "overlay", "checksums", "vlan", "routers", "pods")
    for concern in (*concerns, cli.RECORDS):
        assert concern in tests
    assert (SCENARIOS / scenarios.SEEDED).exists()


MALFORMED = {"a.py\n": "1: a.py is outside a group", "[x]\na.py\na.py\n": "3: a.py is listed twice", "[x]\n": "has no tests"}


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_lists_are_refused_with_their_line(text: str) -> None:
    with pytest.raises(KernelError, match=MALFORMED[text]):
        scenarios.parse(text)


def test_words_select_tests_and_groups() -> None:
    groups = scenarios.parse("[one] # comment\na.py::test_x\nb.py\n\n[two]\nc.py\n")
    assert [group.tests for group in scenarios.select(groups, ())] == [("a.py::test_x", "b.py"), ("c.py",)]
    assert [group.tests for group in scenarios.select(groups, ("b.py", "two"))] == [("b.py",), ("c.py",)]
    with pytest.raises(KernelError, match="no scenario matches nothing; groups: one, two"):
        scenarios.select(groups, ("nothing",))


def test_groups_are_divided_among_two_machines_about_evenly() -> None:
    for count in (1, 2, 3):
        lanes = scenarios.lanes(LISTED, count)
        assert sorted(group.name for lane in lanes for group in lane) == sorted(group.name for group in LISTED)
        sizes = [sum(len(group.tests) + scenarios.LAB for group in lane) for lane in lanes]
        assert len(lanes) == count and max(sizes) - min(sizes) <= max(len(group.tests) + scenarios.LAB for group in LISTED)
    assert len(scenarios.lanes(LISTED[:1], 2)) == 1, "no machine without tests"


def junit(body: str) -> str:
    head = '<testcase classname="testbed.tests.scenarios.paths.test_testbed_datapath" name="test_a[80]" time="1.5">'
    return f'<?xml version="1.0"?><testsuites><testsuite name="pytest">{head}{body}</testcase></testsuite></testsuites>'


RECORDED = '<properties><property name="datapath" value="system@ovs-system" /></properties>'
RIGHT = junit(RECORDED)


def failures(reports: Mapping[str, str | None]) -> int:
    return report.judge(reports, recorded=True).failed


def test_run_passes_only_with_results_from_the_kernels_datapath() -> None:
    verdict = report.judge({"one": RIGHT}, recorded=True)
    assert (verdict.passed, verdict.failed, verdict.datapath) == (1, 0, "system@ovs-system")
    assert verdict.outcomes[0].test == "paths/test_testbed_datapath.py::test_a[80]"
    assert report.judge({"one": junit("")}, recorded=False).failed == 0
    assert failures({"one": junit("")}) == 1
    assert failures({"one": RIGHT.replace("system@ovs-system", "netdev@ovs-netdev")}) == 1


NOT_PASSED = ('<failure message="lost&#10;more">trace</failure>', "<error>x</error>", '<skipped message="no module" />')


@pytest.mark.parametrize("body", NOT_PASSED)
def test_run_fails_with_a_failed_or_skipped_test(body: str) -> None:
    assert failures({"one": RIGHT, "two": junit(body)}) == 1


def test_run_fails_without_the_report_of_a_group() -> None:
    assert failures({"one": RIGHT, "two": None}) == 1
    assert failures({"one": RIGHT, "two": "<testsuites><testsuite /></testsuites>"}) == 1
    assert failures({"one": None}) == 2, "no report, and no recorded datapath"
    assert report.judge({"one": RIGHT}, recorded=True, ended="still running after 900 s").problems == ("still running after 900 s",)


def test_results_name_kernel_datapath_scenarios_and_counts() -> None:
    verdict = report.judge({"one": RIGHT, "two": junit('<failure message="lost&#10;more">trace</failure>')}, recorded=True)
    text = report.lines(verdict, {"kernel": "6.1.0-57-amd64"}, {"open vswitch": "3.1.0"})
    assert text[0].split() == ["kernel", "6.1.0-57-amd64"]
    assert text[1].split() == ["datapath", "system@ovs-system"]
    assert [line.split()[1:] for line in text if line.startswith("paths/")] == [["passed", "1.5"], ["FAILED", "1.5"]]
    assert "    lost" in text
    assert text[-3:] == ["support: open vswitch=3.1.0", "support: datapath=system@ovs-system", "1 passed, 1 failed"]


def guest(*lines: str, then: str = "") -> tuple[str, ...]:
    """A program in place of qemu that prints these lines."""
    return (sys.executable, "-c", f"import time\nfor line in {json.dumps(lines)}: print(line, flush=True)\n{then}")


def test_lines_of_the_guest_are_printed_after_its_first(tmp_path: Path) -> None:
    said: list[str] = []
    assert boot.watch(guest("firmware", f"{BOOTED}6.1", "test PASSED"), tmp_path / "log", (30, 30), said.append) == ""
    assert said == [f"{BOOTED}6.1", "test PASSED"]
    assert (tmp_path / "log").read_text().splitlines() == ["firmware", *said]


def test_machine_that_does_not_boot_is_not_a_result(tmp_path: Path) -> None:
    assert boot.watch(guest("firmware", "no KVM"), tmp_path / "log", (30, 30), print) == "qemu ended with 'no KVM'"
    why = boot.watch(guest("firmware", then="time.sleep(60)"), tmp_path / "log", (0.5, 30), print)
    assert why == "no line of the guest within 0.5 s"


def test_machine_is_ended_at_its_time_limit(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="still running after 1 s"):
        boot.watch(guest(f"{BOOTED}6.1", then="time.sleep(60)"), tmp_path / "log", (30, 1), print)


def test_missing_qemu_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"sos-no-such-qemu is not installed \(scripts/setup.sh kernel\)"):
        boot.watch(("sos-no-such-qemu",), tmp_path / "log", (1, 1), print)
