"""The parts of the page that are HTML, as macros of `parts.html.jinja`, and what they show numbers and texts as."""

from pathlib import Path
from typing import Any

from glocal_xml.explain.html_page import html_templates
from glocal_xml.explain.printable import short


def percent(score: float) -> str:
    """A score in percent; what is not certain is not shown as such."""
    rounded = round(100 * score)
    if score and rounded == 0:
        return "<1%"
    return ">99%" if score < 1 and rounded == 100 else f"{rounded}%"


def counted(number: int, name: str) -> str:
    """A number of things."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def shortened(text: str, longest: int) -> str:
    """The start of a text, which may be a book, on one line."""
    return short(text[: 2 * longest], longest + 1)


_TEMPLATES = html_templates(Path(__file__).parent)
_TEMPLATES.filters |= {"counted": counted, "percent": percent, "shortened": shortened}
PARTS: Any = _TEMPLATES.get_template("parts.html.jinja").module
