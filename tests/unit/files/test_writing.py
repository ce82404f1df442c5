"""Files are written beside their target and renamed: whatever goes wrong, the old file stands."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from loadmaster.errors import UnwritableFile
from loadmaster.files import writing as subject
from loadmaster.files.writing import write_bytes, write_text, writing


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "first\n")
    write_bytes(path, b"second\r\n")
    assert path.read_bytes() == b"second\r\n"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("odd")])
def test_what_goes_wrong_while_writing_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    expected = UnwritableFile if isinstance(error, OSError) else type(error)
    with pytest.raises(expected), writing(path) as part:
        part.write_text("half of")
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_the_error_says_what_the_machine_said(tmp_path: Path) -> None:
    with pytest.raises(UnwritableFile) as caught, writing(tmp_path / "x"):
        raise OSError(28, "No space left on device")
    assert "No space left on device" in caught.value.what and "room" in caught.value.fix
    with pytest.raises(UnwritableFile, match="File name too long"):
        write_text(tmp_path / ("n" * 5000), "")
    with pytest.raises(UnwritableFile, match="No such file or directory"):
        write_text(tmp_path / "absent" / "x", "")


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink() and real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "x", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_devices_are_written_to_directly() -> None:
    write_text("/dev/null", "gone")
    with pytest.raises(UnwritableFile, match="No space left"):
        write_text("/dev/full", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_parts_of_a_process_that_is_gone_are_removed_at_the_next_write(tmp_path: Path) -> None:
    code = "import os, signal, sys; from loadmaster.files.writing import writing\n"
    code += "with writing(sys.argv[1]) as part: part.write_text('half'); os.kill(os.getpid(), signal.SIGTERM)"
    target = tmp_path / "a.json"
    target.write_text("old")
    subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert target.read_text() == "old" and len(list(tmp_path.iterdir())) == 2
    with writing(target) as mine:  # what is being written now stays
        mine.write_text("new")
        write_text(target, "between")
    assert target.read_text() == "new" and list(tmp_path.iterdir()) == [target]


def test_parts_of_killed_processes_are_removed_in_time(tmp_path: Path) -> None:
    abandoned, fresh = tmp_path / ".a.json.0011aa.part.json", tmp_path / ".a.json.0022bb.part.json"
    for part in (abandoned, fresh):
        part.write_text("half")
    os.utime(abandoned, (0, 0))
    write_text(tmp_path / "a.json", "{}")
    assert sorted(os.listdir(tmp_path)) == [fresh.name, "a.json"]


def test_the_bytes_reach_the_disk_before_the_old_file_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(subject.os, "fsync", lambda d: (steps.append("sync"), sync(d))[1])
    monkeypatch.setattr(subject.os, "replace", lambda a, b: (steps.append("rename"), replace(a, b))[1])
    write_text(tmp_path / "a", "x")
    assert steps == ["sync", "rename", "sync"]
