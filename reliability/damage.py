"""What happens to the files of a run: damage, disks that are full and folders that cannot be written to."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tiny_runs import KINDS

if TYPE_CHECKING:
    from torture import Torture

DAMAGES = ("missing", "cut off", "empty", "other bytes", "swapped")


def damage_file(path: Path, damage: str, other: Path) -> None:
    """Does to a file what disks and people do; `other` is what it may be swapped with."""
    content = path.read_bytes()
    middle = len(content) // 2
    if damage == "missing":
        path.unlink()
    elif damage == "swapped":
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    else:
        flipped = bytes([content[middle] ^ 255]) if content else b"x"
        changed = {
            "cut off": content[:middle],
            "empty": b"",
            "other bytes": content[:middle] + flipped + content[middle + 1 :],
        }
        path.write_bytes(changed[damage])


def damaged_checkpoint(torture: "Torture", name: str, damage: str) -> None:
    """A file of the newest checkpoint: an older one is taken, or the run is refused; never other weights."""
    output = torture.folder / "damaged"
    shutil.copytree(torture.undisturbed(name)[0], output)
    newest = sorted(output.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))[-1:] or [
        output / "state"
    ]
    files = sorted(path for path in newest[0].iterdir() if path.is_file())
    # What is the same in both would be no damage.
    differing = [path for path in files if path.read_bytes() not in (b"", files[0].read_bytes())]
    path, other = torture.chance.sample(differing, 2)
    damage_file(path, damage, other)
    promise = f"a file of the newest checkpoint is {damage}: an older one is taken, or the run is refused in one line"
    torture.finish(promise, name, output, f"{path.name} {damage}")


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """A folder on a disk of its own; `PermissionError` where this user may not have one."""
    folder.mkdir()
    size = ["-o", f"size={kilobytes}k"]
    made = subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", str(folder)], capture_output=True, text=True)
    if made.returncode:
        folder.rmdir()
        raise PermissionError(made.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def change_disk(folder: Path, option: str) -> None:
    """Makes it larger, or readable only."""
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


def full_disk(torture: "Torture", name: str) -> None:
    """The disk is full at some moment of a run: one line, and the run resumes when there is room."""
    disk = torture.folder / "disk"
    room = sum(path.stat().st_size for path in torture.undisturbed(name)[0].rglob("*") if path.is_file()) // 1024
    kilobytes = torture.chance.randint(8, room)
    with small_disk(disk, kilobytes):
        ended = torture.workshop.run(KINDS[name], disk / "run")
        case = f"{name}, {kilobytes} of {room} kB: exit codes {ended.codes}"
        if any(ended.codes):
            torture.note("the disk is full: one line", ended.refused, case, ended.log)
            change_disk(disk, "size=64m")
            torture.finish(
                "the disk was full: resumes, or says that there is nothing to resume", name, disk / "run", case
            )


def read_only_folder(torture: "Torture", name: str) -> None:
    """Neither a new nor a resumed run gets far in a folder that cannot be written to."""
    disk = torture.folder / "disk"
    with small_disk(disk, 2**16):
        shutil.copytree(torture.undisturbed(name)[0], disk / "run")
        change_disk(disk, "ro")
        for folder, flag in (("new", "--overwrite_output=true"), ("run", "--resume_from_checkpoint=last")):
            ended = torture.workshop.run(KINDS[name], disk / folder, flag)
            torture.note("the folder is read-only: one line", ended.refused, f"{name}, {folder}", ended.log)
        change_disk(disk, "rw")
        torture.finish("the folder was read-only: resumes", name, disk / "run", name)
