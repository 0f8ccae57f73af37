"""
Writes docs/compatibility.md from the tests: `make compatibility`.

A test that shows what happens to something that users bring says so by a marker,
`@pytest.mark.compatibility(PART, FEATURE, WHAT_HAPPENS, since=VERSION)`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
PARTS = ("Encoders", "Loading and saving", "Training", "Several processes", "Prediction", "Other libraries")
_START = """# Compatibility

What happens to what people bring from Transformers and the libraries around it. Every row is shown by the test that it
links to, and this page is made from these tests (`make compatibility`), on CPUs and with tiny random models.
"""


def marked_tests(folder: Path) -> Iterator[tuple[str, str, str, str, Path]]:
    """Part, feature, what happens and since when, and the file, of every marker in the tests below a folder."""
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for decorator in getattr(node, "decorator_list", []):
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.compatibility":
                    part, feature, happens = map(ast.literal_eval, decorator.args)
                    (since,) = (ast.literal_eval(keyword.value) for keyword in decorator.keywords)
                    yield part, feature, happens, since, path


def page() -> str:
    """The whole page."""
    rows = sorted(marked_tests(ROOT / "tests"), key=lambda row: row[1].strip("`").lower())
    unknown = {part for part, *_ in rows} - set(PARTS)
    if unknown:
        raise ValueError(f"No part of the page is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}.")
    text = _START
    for part in PARTS:
        text += f"\n## {part}\n\n| feature | what happens | since | test |\n|---|---|---|---|\n"
        for of_part, feature, happens, since, path in rows:
            if of_part == part:
                link = f"[{path.stem.removeprefix('test_')}](../{path.relative_to(ROOT).as_posix()})"
                text += f"| {feature} | {happens} | {since} | {link} |\n"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
