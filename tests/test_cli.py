"""The frame of all commands: help, exit codes, and what becomes of mistakes, interruptions and defects."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from glocal_xml import __version__
from glocal_xml.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]


def exit_code(arguments):
    """What the shell gets; argparse leaves on its own."""
    try:
        return main(arguments)
    except SystemExit as stop:
        return stop.code


def start(*arguments, folder=ROOT, before=""):
    """Starts the command as it is installed, in a process of its own, from a folder that holds the package."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{before}import sys; from glocal_xml_command import main; sys.exit(main())",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


@pytest.fixture
def small_package(tmp_path):
    """Writes a package with other files, which has the frame of this one where they do not replace it."""

    def write(**files):
        (tmp_path / "glocal_xml" / "cli").mkdir(parents=True)
        for name in ("cli/__init__", "cli/entry", "interruption", "plain_errors", "version"):
            (tmp_path / "glocal_xml" / f"{name}.py").write_text((ROOT / "glocal_xml" / f"{name}.py").read_text())
        for name, content in files.items():
            with open(tmp_path / "glocal_xml" / f"{name}.py", "a") as file:
                file.write(content)
        (tmp_path / "glocal_xml_command.py").write_text((ROOT / "glocal_xml_command.py").read_text())
        return tmp_path

    return write


@pytest.fixture
def command(monkeypatch):
    """Makes a function the command `made`."""

    def make(function):
        module = ModuleType("glocal_xml.cli.made")
        module.main = function
        monkeypatch.setitem(sys.modules, "glocal_xml.cli.made", module)
        monkeypatch.setitem(COMMANDS, "made", ("", ""))

    return make


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {command} " in shown and f"glocal-xml {command} " in shown for command in COMMANDS)
    assert all(f"\n  {code} " in shown for code in (0, 1, 2, 130, 141))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__
    assert main([]) == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name, capsys):
    assert exit_code([name, "--help"]) in (0, None)
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: glocal-xml {name} ") and shown.count(f"glocal-xml {name} ") > 1
    assert "example" in shown


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
def test_help_takes_no_seconds(arguments):
    """What takes them is the import of torch and of all that comes with it."""
    slow = "{'numpy', 'torch', 'transformers'}"
    loaded = f"import atexit, sys; atexit.register(lambda: print(sorted(sys.modules.keys() & {slow})));"
    process = start(*arguments, "--help", before=loaded)
    shown, _ = process.communicate()
    assert process.returncode == 0 and shown.startswith("usage: glocal-xml ") and shown.endswith("\n[]\n")


def test_the_launcher_loads_the_package_when_it_is_asked(small_package):
    made = "from glocal_xml import name\nimport glocal_xml\ndef main(argv):\n    print(name, glocal_xml.name)\n"
    folder = small_package(
        __init__="print('loaded')\nname = 'value'\n",
        **{"cli/made": made, "cli/entry": "\nCOMMANDS['made'] = ('', '')\nprint('started')\n"},
    )
    assert start("made", folder=folder).communicate() == ("started\nloaded\nvalue value\n", "")


def test_errors_of_the_system_and_home_folders_are_plain(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert exit_code(["train", "--encoder=none", "--train_file=~/none.jsonl", f"--output_dir={tmp_path / 'new'}"]) == 2
    assert f"{tmp_path}/none.jsonl does not exist" in capsys.readouterr().err
    monkeypatch.setattr("glocal_xml.cli.card.main", lambda argv: (tmp_path / "missing").read_text())
    assert exit_code(["card"]) == 2
    assert capsys.readouterr().err == f"glocal-xml: error: {tmp_path}/missing: No such file or directory\n"


def test_warnings_call_arguments_by_their_flags(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("text,labels\nx,a;b\n")
    exit_code(["train", "--encoder", "x/y/z", "--train_file", str(tmp_path / "a.csv"), "--output_dir", str(tmp_path)])
    assert "separated by ';'; set --label_delimiter if" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "the commands are train"),
        (["evaluate", "only-a-model"], "the following arguments are required: test_file"),
        (["train"], "Nothing to do"),
        (["train", "--encoder", "x", "--train_file", "missing.jsonl"], "missing.jsonl"),
        (["train", "--encoder", "user/nothing", "--train_file", "rows.jsonl"], "no folder user/nothing"),
        (["train", "--encodr", "x"], "did you mean --encoder?"),
        (["train", "rows.jsonl", "--encoder", "none"], "rows.jsonl belongs to no option"),
        (["train", "--encoder", "none", "--experts", "dense", "--train_file", "x"], "needs `--experts lexical`"),
        (["train", "--learning_rate", "high"], "invalid float value: 'high'"),
        (["train", "missing.yaml"], "no recipe"),
        (["train", "broken.yaml"], "broken.yaml, line 2: not valid YAML"),
        (["estimate", "--num_labels", "ten"], "invalid int value: 'ten'"),
        (["analyse", "tea"], "There is no study 'tea'"),
        (["card"], "the following arguments are required: run"),
        (["card", "run", "--outptu", "x"], "unrecognized arguments: --outptu x"),
        (["card", "no_such_run"], "no_such_run does not exist; give the folder of a run"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"text": "a", "labels": ["b"]}\n')
    Path("broken.yaml").write_text("a: [1\n")
    assert exit_code(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "Traceback" not in error
    assert error.splitlines()[-1].startswith("glocal-xml") and error.count("\n") < 2


def test_defects_keep_their_traceback(command):
    def defect(argv):
        return {}["key"]

    command(defect)
    with pytest.raises(KeyError):
        main(["made"])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "glocal-xml: interrupted\n"),
        (OSError(28, "No space left on device"), 2, "glocal-xml: error: [Errno 28] No space left on device\n"),
        (ValueError("two\n  lines"), 2, "glocal-xml: error: two lines\n"),
        (ConnectionError(), 2, "glocal-xml: error: ConnectionError\n"),
    ],
)
def test_what_the_shell_gets(command, capsys, error, code, message):
    def fail(argv):
        raise error

    command(fail)
    assert main(["made"]) == code
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("line", ["print('x' * 100)", "sys.stdout.buffer.write(b'x' * 100); sys.stdout.flush()"])
def test_a_reader_that_has_enough(small_package, line):
    made = f"import sys\ndef main(argv):\n    while True: {line}\n"
    folder = small_package(__init__="", **{"cli/made": made, "cli/entry": "\nCOMMANDS['made'] = ('', '')\n"})
    process = start("made", folder=folder)
    assert process.stdout.read(10) == "x" * 10
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 141)


def test_installed_as_a_command_and_as_a_module(small_package):
    folder = small_package(__init__="", __main__=(ROOT / "glocal_xml" / "__main__.py").read_text())
    assert start("--version", folder=folder).communicate() == (f"{__version__}\n", "")
    module = [sys.executable, "-m", "glocal_xml", "--version"]
    assert subprocess.run(module, cwd=folder, capture_output=True, text=True).stdout.strip() == __version__
    assert "glocal-xml = glocal_xml_command:main" in (ROOT / "setup.cfg").read_text()
