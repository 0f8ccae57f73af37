"""A Space: a page for a published model, with all that it needs to run."""

import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import yaml

from .published_files import Files

APP = """\
from glocal_xml.demo import build_page

page = build_page({model_id!r})

if __name__ == "__main__":
    page.launch()
"""


def space_files(model_id: str, space_id: str) -> Files:
    """
    The files of a Space that shows a model.

    The package comes along as source, since the index that a Space installs from does not have it.
    """
    package, kinds = Path(__file__).parents[1], (".py", ".jinja", ".yaml", ".css", ".js", ".typed")
    sources = sorted(path for path in package.rglob("*") if path.suffix in kinds)
    gradio, name = _version("gradio"), space_id.split("/")[1]
    _version("glocal-xml")
    # What the package needs, as its installation tells, without the extras.
    needed = [line for line in requires("glocal-xml") or () if "extra ==" not in line]
    metadata = {
        "title": name,
        "emoji": "🏷️",
        "colorFrom": "blue",
        "colorTo": "green",
        "sdk": "gradio",
        "sdk_version": gradio,
        # Otherwise a Space takes one that may be older than the package allows.
        "python_version": ".".join(map(str, sys.version_info[:2])),
        "app_file": "app.py",
        "models": [model_id],
        "short_description": f"Labels for a text by {name}"[:60],
    }
    header = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    text = f"Paste a text and see which labels `{model_id}` gives it."
    return {
        "README.md": f"---\n{header}---\n\n# {name}\n\n{text}\n".encode(),
        "app.py": APP.format(model_id=model_id).encode(),
        "requirements.txt": "".join(f"{line}\n" for line in [*needed, f"gradio>={gradio}"]).encode(),
        **{f"glocal_xml/{path.relative_to(package).as_posix()}": path for path in sources},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise ValueError(
            f"{package} is not installed, and a Space has to be told its version: `pip install glocal-xml[demo]`."
        ) from None
