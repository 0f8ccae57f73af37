"""What `import glocal_xml` loads, and what only those names that need it."""

import subprocess
import sys

SHOW = "print(*sorted(sys.modules.keys() & {'accelerate', 'datasets', 'sklearn', 'transformers.trainer'}), flush=True)"
ALL_NAMES = "from glocal_xml import *; assert callable(fit) and callable(explain)"


def test_models_need_no_trainer_and_all_public_names_are_there():
    code = f"import glocal_xml, sys; {SHOW}; {ALL_NAMES}; assert all(hasattr(glocal_xml, x) for x in dir(glocal_xml))"
    command = [sys.executable, "-c", f"{code}; {SHOW}"]
    models, names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "transformers.trainer" not in models and "sklearn" not in models
    assert "transformers.trainer" in names
