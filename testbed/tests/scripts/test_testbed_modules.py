"""scripts/modules.py: imports, import cycles and package pages."""

from pathlib import Path
from types import ModuleType

import pytest
from testbed_scripts import load_script


@pytest.fixture(scope="module")
def modules() -> ModuleType:
    return load_script("modules")


def test_blanked_rust_keeps_positions_and_only_the_braces_of_code(modules: ModuleType) -> None:
    text = 'fn a<\'x>(b: &\'x str) { // {\n    let c = \'{\'; let d = "}\\"{"; let e = r#"}"}"#; /* {\n */ }\n'
    code = modules.rust_code(text)
    assert [len(line) for line in code.split("\n")] == [len(line) for line in text.split("\n")]
    assert code.count("{") == code.count("}") == 1
    assert code[modules.closing(code, code.index("{"))] == "}"
    assert "'x str" in code


def test_inline_tests_are_blanked(modules: ModuleType) -> None:
    code = modules.rust_code("use crate::a;\n#[cfg(test)]\n#[allow(dead_code)]\nmod tests { mod b { use crate::c; } }\nuse crate::d;\n")
    assert "crate::c" not in modules.without_tests(code)
    assert "crate::d" in modules.without_tests(code)


def test_use_tree_expands_to_all_paths(modules: ModuleType) -> None:
    assert list(modules.use_paths("crate::{a, b::{c, d as e}, f::*}")) == ["crate::a", "crate::b::c", "crate::b::d", "crate::f::*"]


def test_rust_imports_follow_re_exports_to_the_defining_module(modules: ModuleType) -> None:
    crate = {
        "": "mod a; mod b; pub use b::c::Thing;",
        "a": "use crate::Thing; fn f() { crate::b::g(); }",
        "b": "pub mod c; pub use c::Other; pub fn g() {}",
        "b::c": "use super::Other; use std::fmt; pub struct Thing;",
        "d": "use crate::b::Other;",
    }
    assert modules.rust_imports(crate) == {"a": {"b", "b::c"}, "b": set(), "b::c": set(), "d": {"b::c"}}


def test_python_imports_are_found_at_any_position(modules: ModuleType) -> None:
    package = {
        "p": "from p.a import x",
        "p.a": "import os\ndef f():\n    from p import b",
        "p.b": "from . import c\nfrom .q import r",
        "p.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import x",
        "p.q": "",
        "p.q.r": "from ..c import y",
    }
    assert modules.python_imports(package) == {
        "p": {"p.a"},
        "p.a": {"p.b"},
        "p.b": {"p.c", "p.q.r"},
        "p.c": {"p.a"},
        "p.q": set(),
        "p.q.r": {"p.c"},
    }
    assert modules.python_imports(package, typing_only=False)["p.c"] == set()


def test_import_cycles_are_groups_of_mutually_reachable_modules(modules: ModuleType) -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d", "f"}, "f": set(), "g": {"a", "elsewhere"}}
    assert modules.circles(graph) == [("a", "b", "c"), ("d", "e")]
    assert modules.circles({"a": {"b"}, "b": set()}) == []


def test_page_that_lists_modules_must_name_all_modules(modules: ModuleType) -> None:
    assert modules.omitted("[`a`], [`b::C`] and `c.f()` and `d/`", ["a", "b", "c", "d", "e"]) == ["e"]
    assert modules.omitted("`a`, `b::{c, d}` and `{e}`", ["a", "b", "c", "d", "e"]) == ["e"]
    assert modules.omitted("Only `a` is a door.", ["a", "b", "c", "d", "e"]) == []
    assert modules.omitted("`a`, `b`, `c` of nine", list("abcdefghi")) == []


def test_pages_are_found_with_the_modules_they_must_name(modules: ModuleType) -> None:
    assert modules.python_page({"p": '"""Page."""', "p.a": "", "p.q": "", "p.q.r": "", "p._b": ""}, "p") == ("Page.", ["a", "q"])
    text = "//! Page of [`a`].\npub mod a;\npub(crate) mod b;\n#[cfg(test)]\nmod a_tests;\n// mod c;\n"
    assert modules.rust_page(text) == ("Page of [`a`].", ["a", "b"])


def test_file_paths_become_module_names(modules: ModuleType, tmp_path: Path) -> None:
    for name in ("p/__init__.py", "p/a.py", "lib.rs", "main.rs", "b.rs", "b/c.rs", "d/mod.rs", "b_tests.rs", "b/tests.rs"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {name}")
    assert modules.python_modules(tmp_path) == {"p": "# p/__init__.py", "p.a": "# p/a.py"}
    assert modules.rust_modules(tmp_path) == {"": "# lib.rs", "b": "# b.rs", "b::c": "# b/c.rs", "d": "# d/mod.rs"}
