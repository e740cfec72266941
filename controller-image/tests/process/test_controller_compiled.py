"""Check the list of modules that the image compiles (docs/adr/0028)."""

import tomllib
from pathlib import Path

PACKAGE = Path(__file__).parents[2]


def test_all_core_modules_without_msgspec_classes_are_compiled() -> None:
    """A compiled module would create msgspec classes without their options. A frozen object would become mutable."""
    hook = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    core = PACKAGE / "src" / "sos_controller" / "core"
    made = {str(path.relative_to(PACKAGE)) for path in core.rglob("*.py") if "(msgspec.Struct" in path.read_text()}
    assert made
    assert set(hook["exclude"]) == made | {"src/sos_controller/core/**/__init__.py"}
    others = {path for path in hook["include"] if "*" not in path}
    assert "src/sos_controller/core/**/*.py" in hook["include"]
    assert not [path for path in others if "(msgspec.Struct" in (PACKAGE / path).read_text()]
