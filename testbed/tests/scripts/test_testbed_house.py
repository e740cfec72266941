"""scripts/house.py: pure counting functions."""

from pathlib import Path
from types import ModuleType

import pytest
from testbed_scripts import load_script

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def house() -> ModuleType:
    return load_script("house")


def test_percentiles_are_nearest_rank(house: ModuleType) -> None:
    assert [house.percentile(range(1, 101), share) for share in (0.5, 0.9, 0.99, 1.0)] == [51, 91, 100, 100]
    assert house.percentile([], 0.5) == 0


def test_python_functions_are_measured_without_decorators(house: ModuleType) -> None:
    text = "class A:\n    @property\n    def b(self) -> int:\n        'Doc.'\n        return 1\n\nasync def c(d, *, e: int) -> None: pass\n"
    assert [(each.name, each.lines, each.annotated, each.documented) for each in house.python_functions(text)] == [
        ("c", 1, False, False),
        ("b", 3, True, True),
    ]


def test_rust_functions_without_a_body_are_not_counted(house: ModuleType) -> None:
    text = (
        "trait T { fn a(&self, b: [u8; 4]); }\nfn c<'x>(d: [u8; 4])\nwhere\n    u8: Copy,\n{\n    // }\n    let e = '}';\n}\n// fn f() {}\n"
    )
    assert [(each.name, each.lines) for each in house.rust_functions(text)] == [("c", 7)]


def test_unsafe_and_comments_of_rust_are_counted(house: ModuleType) -> None:
    text = '//! unsafe {\n#![deny(unsafe_op_in_unsafe_fn)]\nunsafe fn a() {} // unsafe\nfn b() { unsafe { a() } }\nlet c = "unsafe {";\n'
    assert house.unsafe_uses(text) == 2
    assert house.comment_lines(text) == 1


def test_doc_comments_that_open_with_a_question_word_are_found(house: ModuleType) -> None:
    rust = "//! Page.\n//! Line.\n\n/// What a does.\n/// More.\nfn a() {}\n    /// Whatever b does.\n    fn b() {}\n"
    assert house.rust_docs(rust) == ["Page.\nLine.", "What a does.\nMore.", "Whatever b does."]
    python = '"""Module."""\nclass A:\n    """Who calls."""\n    def b(self): pass\n'
    assert house.python_docs(python) == ["Module.", "Who calls."]
    assert [house.opens_with_question(doc) for doc in (*house.rust_docs(rust), "Who calls.")] == [False, True, False, True]


def test_words_are_counted_whole_and_in_any_case(house: ModuleType) -> None:
    assert house.occurrences(["Nobody; nobody's, anewly", "lately"]) == {"nobody": 2, "somebody": 0, "anew": 0, "lately": 1}


def test_private_names_and_the_fullest_folder_are_found(house: ModuleType) -> None:
    paths = [Path("a/courier.py"), Path("a/plan.py"), Path("b/observed.rs")]
    assert house.private_names(paths) == ["courier", "observed"]
    assert house.private_names([*paths[:2], Path("crates/sos-node/src/observed.rs")]) == ["courier"]
    assert house.fullest(paths) == ("a", 2)
    assert house.fullest([]) == ("", 0)


def test_parts_of_this_repository_become_rows(house: ModuleType) -> None:
    python = [part for part in house.python_parts(ROOT) if part.name == "sos_compile"]
    rust = [part for part in house.rust_parts(ROOT) if part.name == "testbed/linkemu"]
    text = house.report([(ROOT, python, rust)])
    assert "| sos_compile | " in text
    assert "| testbed/linkemu | " in text
