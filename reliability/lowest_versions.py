"""Prints the lower bounds of setup.cfg as constraints for pip: the oldest versions that the tests must pass with."""

import configparser
import re
from pathlib import Path


def lowest_versions(setup: Path) -> list[str]:
    """`name==version` for each bound of the package and of what its tests need."""
    parser = configparser.ConfigParser()
    parser.read(setup, encoding="utf-8")
    wanted = parser["options"]["install_requires"] + parser["options.extras_require"]["dev"]
    found = re.findall(r"^([\w-]+)(?:\[\w+\])?>=([\d.]+)$", wanted, flags=re.MULTILINE)
    # A later version of torch may pull gigabytes of CUDA. Versions of type stubs end with dates; no test needs them.
    exact = {"torch": "2.13.0"}
    return [f"{name}=={exact.get(name, version)}" for name, version in found if not name.startswith("types-")]


if __name__ == "__main__":
    print("\n".join(lowest_versions(Path(__file__).parents[1] / "setup.cfg")))
