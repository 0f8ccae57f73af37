import subprocess
import sys

import pytest

from glocal_xml import __version__
from glocal_xml.cli import COMMANDS, main


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__
    assert main([]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "the commands are train"),
        (["evaluate", "only-a-model"], "MODEL FILE"),
        (["train"], "Nothing to do"),
        (["train", "--encoder", "x", "--train_file", "missing.jsonl"], "missing.jsonl"),
        (["train", "missing.yaml"], "no recipe"),
        (["card"], "card RUN_FOLDER"),
        (["card", "run", "--outptu", "x"], "card RUN_FOLDER"),
        (["card", "no_such_run"], "no_such_run"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "Traceback" not in error


def test_installed_as_a_command():
    process = subprocess.run([sys.executable, "-m", "glocal_xml", "--version"], capture_output=True, text=True)
    assert process.returncode == 0 and process.stdout.strip() == __version__
