"""What `import glocal_xml` loads, and what only those names that need it."""

import subprocess
import sys


def loaded(code):
    names = "{'accelerate', 'datasets', 'sklearn', 'transformers.trainer'}"
    command = f"import sys; {code}; print(*sorted(sys.modules.keys() & {names}))"
    return subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout.split()


def test_models_need_no_trainer():
    assert "transformers.trainer" not in loaded("import glocal_xml") and "sklearn" not in loaded("import glocal_xml")


def test_all_public_names_are_there():
    code = "from glocal_xml import *; import glocal_xml; assert callable(fit) and callable(explain)"
    assert "transformers.trainer" in loaded(f"{code}; assert all(hasattr(glocal_xml, x) for x in dir(glocal_xml))")
