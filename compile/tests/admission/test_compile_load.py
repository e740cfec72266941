from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import LoadError, load
from sos_compile.admission.load import MAX_FILE_BYTES, crds, parse


def test_loaded_documents_have_index_and_line() -> None:
    loaded = parse("# remark\nkind: A\n---\n---\nkind: B\n...\n---\nkind: List\nitems: [{kind: C}, {kind: D}]\n", "f")
    assert [(item.obj["kind"], item.index) for item in loaded] == [("A", 0), ("B", 1), ("C", 2), ("D", 3)]
    assert [item.line for item in loaded][:2] == [2, 4]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: [1\n", 2, "not YAML"),
        ("kind: A\nkind: B\n", 2, "given twice"),
        ("a:\n  b: 1\n  b: 2\n", 3, "given twice"),
        ("kind: A\n---\n- 1\n", 2, "not an object"),
        ("1: 2\n", 1, "not a string"),
        ("kind: A\n---\njust text\n", 2, "not an object"),
        ("a: &a [*a]\nb: !!python/object:os.system x\n", 2, "not YAML"),
    ],
)
def test_errors_name_file_and_line(text: str, line: int, message: str) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        parse(text, "some.yaml")
    assert (caught.value.file, caught.value.line) == ("some.yaml", line)
    assert str(caught.value).startswith(f"some.yaml:{line}: ")


def test_dates_stay_text() -> None:
    assert (
        parse("metadata: {creationTimestamp: 2026-01-01T00:00:00Z}", "f")[0].obj["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"
    )


def test_folder_loads_all_its_yaml_files(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text("kind: B")
    (tmp_path / "a.yaml").write_text("kind: A")
    (tmp_path / "notes.md").write_text("not: [yaml")
    assert [item.obj["kind"] for item in load([tmp_path])] == ["A", "B"]


def test_unreadable_input_is_an_error(tmp_path: Path) -> None:
    for path, content in (
        (tmp_path / "none.yaml", None),
        (tmp_path / "bytes.yaml", b"\xff\xfe\xfa"),
        (tmp_path / "big.yaml", b"a" * (MAX_FILE_BYTES + 1)),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(LoadError, match=path.name):
            load([path])
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(LoadError, match=r"no \*\.yaml"):
        load([empty])


@given(st.text(max_size=200))
def test_any_text_yields_objects_or_an_error(text: str) -> None:
    try:
        loaded = parse(text, "f")
    except LoadError:
        return
    assert all(isinstance(item.obj, dict) for item in loaded)


def test_package_contains_the_crds() -> None:
    assert set(crds()) == {"SosSite", "SosAgent", "SosService", "SosController", "SosLink", "SosPeer"}
