"""Starts `glocal-xml` without all that `import glocal_xml` loads: seconds that its help need not take."""

import sys
from importlib.util import find_spec, module_from_spec
from typing import Any


def main() -> int:
    """Runs the command; a name that is asked of the package itself, as users do, still loads it whole."""
    spec = find_spec("glocal_xml")
    package = module_from_spec(spec)

    def load(name: str) -> Any:
        del package.__getattr__
        spec.loader.exec_module(package)
        return getattr(package, name)

    package.__getattr__ = load
    sys.modules["glocal_xml"] = package
    from glocal_xml.cli import main as run

    return run()
