"""Whether figures can be drawn."""


def check_matplotlib() -> None:
    """Refuses figures without matplotlib, before the work that they would show."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("Figures need matplotlib: get it with `pip install 'glocal-xml[analysis]'`.") from None
