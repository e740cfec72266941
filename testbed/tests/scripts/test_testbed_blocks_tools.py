"""scripts/blocks.py: its tables of kubectl and helm, compared with the help of kubectl and helm for every command in the pages."""

import functools
import importlib
import re
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from testbed_scripts import ROOT, load_script

BLOCKS = load_script("blocks")
TABLES: dict[str, Any] = {name: importlib.import_module(f"shell_blocks.{name}") for name in ("kubectl", "helm")}
KUBECTL_OPTION = re.compile(r"^ +(?:(-\w), +)?(--[\w-]+)=(true|false)?", re.MULTILINE)
HELM_OPTION = re.compile(r"^ +(?:(-\w), +)?(--[\w-]+)(?: (\w+))?  ", re.MULTILINE)


@functools.cache
def help_of(*argv: str) -> str:
    program = subprocess.run((str(ROOT / "scripts/kube-tools.sh"), "--where", argv[0]), capture_output=True, text=True, check=True)
    done = subprocess.run((program.stdout.strip(), *argv[1:]), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout


def takes_value(text: str, program: str) -> dict[str, bool]:
    """Options in a help text; True for those with a value."""
    found = {}
    for short, name, kind in (KUBECTL_OPTION if program == "kubectl" else HELM_OPTION).findall(text):
        takes = not kind if program == "kubectl" else bool(kind)
        found.update({each: takes for each in (short, name) if each})
    return found


def used() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Program, verb and words after the program of every command in the pages, examples in backticks included."""
    for page in BLOCKS.read_pages(BLOCKS.Checker(ROOT)).values():
        texts = (*(block.commands for block in page.blocks), *(mention.text for mention in page.mentions))
        for program, *words in (command.words for text in texts for command in BLOCKS.shell.commands(text)):
            if program in TABLES and (operands := split(program, words).operands) and operands[0] != "sos":
                yield program, operands[0], tuple(words)


def split(program: str, words: Iterable[str]) -> Any:
    """Options and operands by the checker's table."""
    return TABLES[program].options.split(words, TABLES[program].WITH_VALUE, TABLES[program].FLAGS)


USED = sorted(set(used()))


def verb_words(program: str, verb: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The verb with its second word, for verbs that have verbs of their own."""
    if (program, verb) in {("kubectl", "rollout"), ("kubectl", "auth"), ("helm", "get"), ("helm", "registry")}:
        after = [word for word in words[words.index(verb) + 1 :] if not word.startswith("-")]
        return (verb, *after[:1])
    return (verb,)


def test_the_pages_use_many_verbs() -> None:
    assert len({(program, verb) for program, verb, _ in USED}) > 15


@pytest.mark.parametrize("program", TABLES)
def test_every_verb_and_option_of_the_pages_exists(program: str) -> None:
    common = takes_value(help_of("kubectl", "options"), program) if program == "kubectl" else {}
    table = TABLES[program]
    for name, verb, words in USED:
        if name != program or verb == "krew":  # a plugin
            continue
        known = {**common, **takes_value(help_of(program, *verb_words(program, verb, words), "--help"), program)}
        for option, _ in split(program, words).options:
            letters = [f"-{letter}" for letter in option[1:]] if re.fullmatch(r"-\w\w+", option) else [option]
            expected = option in table.WITH_VALUE
            wrong = [each for each in letters if each not in {"-h", "--help"} and known.get(each) != expected]
            assert not wrong, f"{program} {' '.join(words)}: {wrong}, in the help: {[known.get(each) for each in wrong]}"


@pytest.mark.parametrize(("program", "verb"), [("kubectl", "gets"), ("helm", "instal")])
def test_help_of_an_unknown_verb_fails(program: str, verb: str) -> None:
    with pytest.raises(AssertionError):
        help_of(program, verb, "--help")


def test_options_are_read_from_help() -> None:
    kubectl = "    -A, --all-namespaces=false:\n\tIf present\n\n    --chunk-size=500:\n\tReturn\n    -l, --selector='':\n"
    assert takes_value(kubectl, "kubectl") == {"-A": False, "--all-namespaces": False, "--chunk-size": True, "-l": True, "--selector": True}
    helm = "      --create-namespace    if --install is set\n  -f, --values strings      specify\n"
    assert takes_value(helm, "helm") == {"--create-namespace": False, "-f": True, "--values": True}
