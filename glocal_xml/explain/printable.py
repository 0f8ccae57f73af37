"""Texts and probabilities as they are shown."""

# A contribution that rounds to none.
NOTHING = "0.00"
# Control characters but tabs and line feeds, by the pictures that Unicode has for them, or by a replacement character.
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
_PICTURES |= {0x7F: "\u2421"} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")


def printable(text: str) -> str:
    """The text with control characters made visible, so that none can steer a terminal or break a page."""
    return text.replace("\r\n", "\n").translate(_PICTURES)


def short(name: str, longest: int) -> str:
    """A name of one line that is not longer than it may be."""
    shown = " ".join(printable(name).split())
    return shown if len(shown) <= longest else shown[: longest - 1].rstrip() + "…"


def two_digits(probability: float) -> str:
    """A probability with two digits; small ones are not shown as zero."""
    return "<0.01" if 0.0 < probability < 0.005 else f"{probability:.2f}"


def signed(value: float) -> str:
    """What a word adds, with its sign; without one where it rounds to nothing."""
    shown = f"{value:+.2f}"
    return NOTHING if float(shown) == 0.0 else shown
