"""One run from files to results."""

from .fit import fit
from .run import run

__all__ = ["fit", "run"]
