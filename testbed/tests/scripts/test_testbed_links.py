"""scripts/links.py: checks of code names and glossary terms."""

from types import ModuleType

import pytest
from testbed_scripts import load_script

FILES = ("scripts/lint.py", "controller-image/src/sos_controller/core/engine.py")
MODULES = {"sos_compile": "from sos_compile.world import World", "sos_compile.world": "class World:\n    def add(self): ...\n"}


@pytest.fixture(scope="module")
def links() -> ModuleType:
    return load_script("links")


@pytest.mark.parametrize("name", ["scripts/lint.py", "core/engine.py", "sos_compile", "sos_compile.world", "sos_compile.world.World.add"])
def test_existing_code_names_are_accepted(links: ModuleType, name: str) -> None:
    assert list(links.missing_names(f"See `{name}`.", FILES, MODULES)) == []


@pytest.mark.parametrize("name", ["scripts/lint.rs", "ore/engine.py", "sos_compile.worlds", "sos_compile.world.Globe", "sos_kubectl.trace"])
def test_missing_code_names_are_reported(links: ModuleType, name: str) -> None:
    assert [problem.split(":")[0] for problem in links.missing_names(f"See `{name}`.", FILES, MODULES)] == [f"`{name}`"]


@pytest.mark.parametrize("name", ["/run/sos/a.json", "out/bench/wan.json", "sos_agent_streams", "make test", "a/b", "sos_compile.*"])
def test_other_words_in_backticks_are_not_code_names(links: ModuleType, name: str) -> None:
    assert list(links.missing_names(f"See `{name}`.", FILES, MODULES)) == []


def test_code_blocks_are_not_checked(links: ModuleType) -> None:
    assert list(links.missing_names("```\nUse `my/values.yaml`.\n```\n", FILES, MODULES)) == []


def test_terms_come_from_tables_with_a_term_column(links: ModuleType) -> None:
    page = "| term | meaning |\n|---|---|\n| ack offset | ... |\n| `datapath` | a \\| b |\n\n| not this | this |\n|---|---|\n| x | y |\n"
    assert links.terms(page) == ["ack offset", "datapath"]


def test_term_counts_as_used_in_any_spelling_or_number(links: ModuleType) -> None:
    glossary = "| term | meaning |\n|---|---|\n| ack offset | |\n| near entry, far entry | |\n| half-open (connection) | |\n| switch | |\n"
    text = links.plain("let ackOffset = 1; near_entry_of; half-open; switches of Far Entries")
    assert links.unused(glossary, text.replace("near", "new")) == ["near entry"]
    assert links.unused(glossary, text) == []
