"""Publishing: a trained model as a repository on the Hub, and a page for it as a Space."""

from .publish import Published, check_space, model_files, publish
from .space import space_files

__all__ = ["Published", "check_space", "model_files", "publish", "space_files"]
