"""scripts/blocks.py: commands in pages, each rule with a wrong command, and the runnable blocks that need no lab."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from testbed_scripts import ROOT, load_script

BLOCKS = load_script("blocks")
TICKS = "```"


@pytest.fixture(scope="module")
def blocks() -> ModuleType:
    return BLOCKS


@pytest.fixture(scope="module")
def checker() -> Any:
    return BLOCKS.Checker(ROOT)


def problems(checker: Any, text: str, language: str = "sh") -> list[str]:
    """Problems of a page with one block at line 2."""
    page = BLOCKS.pages.read("a.md", f"# Page\n{TICKS}{language}\n{text}\n{TICKS}\n")
    return list(BLOCKS.page_problems("a.md", page, checker))


RIGHT = [
    "kubectl sos diagnose west east --server 10.0.0.139:5001",
    "kubectl-sos diagnose west east --lab -",
    "kubectl sos trace CLIENT SERVER PORT",
    "kubectl get sos -A",
    "kubectl --context b apply -f - < for-b.yaml",
    "kubectl -n sos-system get pods,podmonitors -l app.kubernetes.io/component=operator",
    "kubectl delete sossvc -A --all && kubectl get sossites.sos.network west",
    "kubectl exec client -- curl -s http://10.0.0.139",
    "for context in a b; do kubectl --context $context apply -f examples/09-two-clusters/site-$context.yaml; done",
    'kubectl annotate secret sos-master -n sos-system --overwrite sos.network/rotate-keys="$(date +%F)"',
    "./lab up --rate 500mbit --rtt 164ms && ./lab exec client -- curl -o /dev/null http://10.0.0.139",
    "python -m sos_testbed status --json",
    "python -m sos_compile examples/02-overlay --node a=clemson@192.0.2.1",
    "make e2e SUITE=short KEEP=1",
    "make bench-wan ARGS='--only 59ms --runs 1'",
    "helm install sos charts/sos --set images.registry=$REGISTRY,crds.enabled=false --wait",
    "helm upgrade sos charts/sos --reuse-values --set defaults.controller.spec.openflow.tls=Required",
    ".venv/bin/python bench/wan/run.py --help",
    "scripts/kube-tools.sh --where kubectl",
    "sudo ip link set eth0 up",
    "PATH=$PWD/.venv/bin:$PATH kubectl sos topology",
]


@pytest.mark.parametrize("text", RIGHT)
def test_right_commands_have_no_problem(checker: Any, text: str) -> None:
    assert problems(checker, text) == []


WRONG = {
    "if true; then echo": "unexpected end of file",
    "echo 'a": "unexpected EOF",
    "x=$(cat a) y; local z=1": "SC2168",
    "kubectl sos diagnos west east": "No such command 'diagnos'",
    "kubectl sos diagnose west east --servers 10.0.0.1:80": "No such option '--servers'",
    "kubectl sos diagnose --seconds 90": "90 is not in the range",
    "kubectl sos estimate 160 0.01% 1gbit": "write it like 160ms",
    "kubectl sos trace 10.1.0.1 10.2.0.1": "missing argument port",
    "kubectl sos status west": "too many arguments: west",
    "kubectl sos peer invite b --prefix 10.0.0.0/8": "missing option own",
    "kubectl --context a sos status": "options of kubectl before `sos`",
    "kubectl gets pods": "unknown verb gets",
    "kubectl get sosite": "unknown kind sosite",
    "kubectl wait --for=condition=Ready soscontrolers/default": "unknown kind soscontrolers",
    "kubectl -n sos-system logs deploys/sos-operator": "unknown kind deploys",
    "kubectl get pods --selectors a=b": "unknown option --selectors",
    "kubectl apply examples/02-overlay": "no -f",
    "kubectl apply -f examples/02-overlays": "there is no such file",
    "kubectl apply -f examples/09-two-clusters/sit-$context.yaml": "there is no such file",
    "kubectl annotate secret s sos.network/rotate-key=1": "no code uses such a label or annotation",
    "kubectl exec client -- curll http://10.0.0.1": "curll: unknown program",
    "kubctl get pods": "kubctl: unknown program",
    "./lab upp": "No such command 'upp'",
    "./lab up --loss 1% --delay 5ms": "No such option: --delay",
    "./lab up figure9": "'figure9' is not one of",
    "./lab exec": "missing argument host",
    "python -m sos_testbed fault links": "'links' is not one of",
    "python -m sos_compile examples/02-overlay --nodes a=b": "no option --nodes",
    "make quickstart": "no target quickstart",
    "make e2e SUITES=short": "no variable SUITES",
    "make e2e SUITE=shot": "no SUITE shot",
    "helm instal sos charts/sos": "unknown verb instal",
    "helm install charts/sos": "too few arguments",
    "helm install sos charts/soss": "there is no such file",
    "helm install sos charts/sos --sets a=b": "unknown option --sets",
    "helm install sos charts/sos --set images.registri=x": "no value images.registri",
    "helm install sos charts/sos --set crds.enabled=5": "5 is not of type 'boolean'",
    "helm install sos charts/sos --set defaults.controller.spec.openflow.tsl=Required": "no value defaults.controller.spec.openflow.tsl",
    "helm install sos charts/sos --set defaults.controller.spec.openflow.tls=Always": "'Always' is not one of",
    "python bench/wan/runs.py": "there is no such file",
    ".venv/bin/python bench/wan/run.py --sceonds 3": "no option --sceonds",
    "scripts/kube-tools.sh --were kubectl": "no option --were",
    "for x in a b; do make $x; make lnt; done": "no target lnt",
    "echo $(kubectl get sosite)": "unknown kind sosite",
}


@pytest.mark.parametrize(("text", "expected"), WRONG.items())
def test_each_wrong_command_is_named_with_its_line(checker: Any, text: str, expected: str) -> None:
    found = problems(checker, f"true\n{text}")
    assert len(set(found)) >= 1 and all(problem.startswith("a.md:4: ") for problem in found)
    assert any(expected in problem for problem in found)


def test_console_blocks_are_checked_without_their_output(checker: Any) -> None:
    text = "# make help\nmake it so\n$ kubectl get \\\n    sosite\n...\n# make lnt"
    assert problems(checker, text, "console") == [
        "a.md:5: kubectl get: unknown kind sosite",
        "a.md:8: make: there is no target lnt",
    ]


def test_output_of_a_console_block_is_what_has_no_prompt(blocks: ModuleType) -> None:
    (block,) = blocks.pages.read("a.md", f"{TICKS}console\n$ a \\\n  b\nc\n# d\ne\n{TICKS}\n").blocks
    assert (block.commands.split("\n"), block.output) == (["a \\", "  b", "", "d", "", ""], "c\ne\n")


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("text\n\n```\n./lab up\n```\n", "a.md:3: a block of commands without a language"),
        ("```\n$ true\n```\n", "a.md:1: a block of commands without a language"),
        ("text\n\n    make test\n", "a.md:3: commands in an indented block"),
        ("```console\nmake test\n```\n", "a.md:1: a console block without a prompt"),
        ("```sh\ntrue\n", "a.md:1: the fence has no end"),
        ("<!-- run: one -->\n\n```sh\ntrue\n```\n", "a.md:1: <!-- run: NAME --> must stand alone"),
        ("<!-- run: One -->\n```sh\ntrue\n```\n", "a.md:1: <!-- run: NAME --> must stand alone"),
        ("<!-- run: one -->\n```yaml\na: b\n```\n", "a.md:2: run: one: not a shell block"),
        ("Run `make lnt` first.\n", "a.md:1: `make lnt`: make: there is no target lnt"),
        ("| `kubectl sos status --wat` |\n", "a.md:1: `kubectl sos status --wat`: kubectl sos status: No such option '--wat'"),
        ("- list:\n\n  ```sh\n  make lnt\n  ```\n", "a.md:4: make: there is no target lnt"),
    ],
)
def test_commands_that_escape_the_check_are_reported(blocks: ModuleType, checker: Any, page: str, expected: str) -> None:
    found = list(blocks.page_problems("a.md", blocks.pages.read("a.md", page), checker))
    assert len(found) == 1 and found[0].startswith(expected)


def test_mentions_may_leave_arguments_out(blocks: ModuleType, checker: Any) -> None:
    page = "`kubectl sos trace`, `kubectl get`, `helm uninstall`, `make release [VERSION=1]`, `kubectl sos drain NODE\\|AGENT`\n"
    assert list(blocks.page_problems("a.md", blocks.pages.read("a.md", page), checker)) == []


def marked(*names: str) -> list[Any]:
    return [BLOCKS.Block("a.md", 5, "sh", "true\n", name) for name in names]


@pytest.mark.parametrize(
    ("names", "suites", "files", "expected"),
    [
        (["one"], {"one": "t.py"}, {"t.py": 'run("one")'}, []),
        (["one"], {}, {}, ["run: one: no suite runs it"]),
        (["one", "one"], {"one": "t.py"}, {"t.py": "'one'"}, ["run: one: several blocks", "run: one: several blocks"]),
        ([], {"one": "t.py"}, {"t.py": "'one'"}, ["one: no page has a block"]),
        (["one"], {"one": "t.py"}, {}, ["one: there is no file t.py"]),
        (["one"], {"one": "t.py"}, {"t.py": "one two 'one-two'"}, ["one: t.py does not run it"]),
    ],
)
def test_every_runnable_block_has_a_suite_and_every_suite_a_block(
    blocks: ModuleType, names: list[str], suites: dict[str, str], files: dict[str, str], expected: list[str]
) -> None:
    found = [message for _, message in blocks.registry.problems(marked(*names), suites, files.get)]
    assert len(found) == len(expected) and all(map(str.startswith, found, expected))


def test_pages_have_no_wrong_command(blocks: ModuleType, checker: Any) -> None:
    assert list(blocks.problems(checker)) == []


def test_many_commands_of_the_pages_are_checked(blocks: ModuleType, checker: Any) -> None:
    """A check that found no commands would find no errors, either."""
    pages = blocks.read_pages(checker).values()
    found = [command for page in pages for block in page.blocks for command in blocks.shell.commands(block.commands)]
    assert len(found) > 150 and sum(len(page.mentions) for page in pages) > 250


def test_print_prints_the_commands_of_a_block_only() -> None:
    argv = (sys.executable, str(ROOT / "scripts" / "blocks.py"), "--print")
    done = subprocess.run((*argv, "estimate"), capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["kubectl", "sos", "estimate", "160ms", "0.01%", "1gbit", "--size", "10GB"]
    missing = subprocess.run((*argv, "no-such-block"), capture_output=True, text=True, check=False, timeout=60)
    assert (missing.returncode, missing.stdout) == (1, "") and "no page has a block <!-- run: no-such-block -->" in missing.stderr


# --- runnable blocks -------------------------------------------------------------------------------------------------------


def run_block(name: str, folder: Path) -> tuple[str, Any]:
    """Run a block in a folder that has the repository's examples, with the programs of .venv and without a cluster."""
    (folder / "examples").symlink_to(ROOT / "examples")
    tools = folder / "bin"
    tools.mkdir()
    # kubectl finds a plugin by its name on PATH; without kubectl, the plugin itself takes its place
    plugin = Path(sys.executable).with_name("kubectl-sos")
    (tools / "kubectl").write_text(f'#!/bin/sh\n[ "$1" = sos ] && shift && exec {plugin} "$@"\nexit 1\n')
    (tools / "kubectl").chmod(0o755)
    block = BLOCKS.runnable(BLOCKS.Checker(ROOT))[name]
    environment = {"PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder), "PYTHONSAFEPATH": "1"}
    argv = ("bash", "-euo", "pipefail", "-c", block.commands)
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, block


def test_estimate_prints_what_its_page_shows(tmp_path: Path) -> None:
    output, block = run_block("estimate", tmp_path)
    assert output == block.output


@pytest.mark.parametrize("name", ["compile-two-sites", "compile-overlay"])
def test_examples_compile_by_the_commands_of_their_pages(name: str, tmp_path: Path) -> None:
    output, _ = run_block(name, tmp_path)
    assert " objects, 0 problems; 1 controller-configs" in output
