"""The file in which cached pages outlive the process: whole, its own, bounded, locked; or not used."""

from __future__ import annotations

import errno
import logging
import os
import stat
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import CapacityError, InvalidRequestError
from octavo.runtime import page_file
from octavo.runtime.page_file import FILE_NAME, HEADER_BYTES, RECORD, PrefixFile

PAGE = 5000
MADE_BY = {"model": "m", "kv": "f16"}
BLOCKS = 12
OLDER = "the file has version 0, not 1"
OTHER = "the file is of another model, or of other settings or kernels"


def key(number: int) -> bytes:
    return bytes([number]) * 32


def content(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, PAGE, np.uint8)


def opened(folder: Path, made_by: dict[str, str] = MADE_BY, blocks: int = BLOCKS) -> PrefixFile | None:
    return PrefixFile.open(str(folder), made_by, PAGE, HEADER_BYTES + blocks * (PAGE + RECORD.size))


def made(folder: Path, **options: Any) -> PrefixFile:
    file = opened(folder, **options)
    assert file is not None
    return file


def news(file: PrefixFile, count: int = 1) -> dict[int, bool]:
    found: dict[int, bool] = {}
    while len(found) < count:
        file.wait()
        found.update(file.news())
    return found


def filled(folder: Path, numbers: Sequence[int] = (3, 1, 2)) -> PrefixFile:
    """Page n in block n."""
    file = made(folder)
    for number in numbers:
        file.save(key(number), number, content(number))
    assert news(file, len(numbers)) == dict.fromkeys(numbers, True)
    return file


def leave(folder: Path) -> Path:
    """A file as a process leaves it behind."""
    filled(folder).close([(key(n), n) for n in (2, 1, 3)])
    return folder / FILE_NAME


def good(file: PrefixFile, number: int) -> bool:
    file.fetch(key(number), number)
    return news(file)[number]


def spoil(path: Path, at: int, what: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(what)


def block_at(block: int) -> int:
    return HEADER_BYTES + BLOCKS * RECORD.size + block * PAGE


def test_pages_outlive_the_process(tmp_path: Path) -> None:
    leave(tmp_path)
    file = made(tmp_path)
    assert list(file.stored()) == [(key(n), n) for n in (2, 1, 3)]  # in the order that close() was told
    for number in (1, 2, 3):
        assert good(file, number)
        assert file.page(number).tobytes() == content(number).tobytes()
    file.close(file.stored())


def test_pages_outlive_a_process_that_was_killed(tmp_path: Path) -> None:
    file = filled(tmp_path)
    os.close(os.dup(file._fd))
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / FILE_NAME).write_bytes((tmp_path / FILE_NAME).read_bytes())  # what the disk has without close()
    again = made(copy)
    assert list(again.stored()) == [(key(n), n) for n in (3, 1, 2)]  # in the order of writing
    assert good(again, 1)
    for one in (file, again):
        one.close([])


def test_a_closed_file_forgets_what_it_was_not_told(tmp_path: Path) -> None:
    filled(tmp_path).close([(key(1), 1)])
    file = made(tmp_path)
    assert list(file.stored()) == [(key(1), 1)]
    file.close([])


def test_another_engine_begins_with_what_the_file_holds_now(tmp_path: Path) -> None:
    leave(tmp_path)
    file = made(tmp_path)
    file.save(key(7), 1, content(7))  # in the place of 1
    file.save(key(8), 8, content(8))
    file.fetch(key(2), 2)
    file.reload()
    assert file.news() == []
    assert list(file.stored()) == [(key(n), block) for n, block in ((2, 2), (3, 3), (7, 1), (8, 8))]
    file.save(key(9), 9, content(9))
    assert news(file) == {9: True}
    file.close(file.stored())


def test_clearing(tmp_path: Path) -> None:
    file = filled(tmp_path)
    file.clear()
    file.close([(key(1), 1)])
    again = made(tmp_path)
    assert list(again.stored()) == []
    again.close([])


@pytest.mark.parametrize("at", [0, 17, PAGE - 1])
def test_a_damaged_page_is_not_good(tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    path = leave(tmp_path)
    old = path.read_bytes()[block_at(1) + at]
    spoil(path, block_at(1) + at, bytes([old ^ 16]))
    file = made(tmp_path)
    assert (good(file, 1), good(file, 2)) == (False, True)
    assert [r.message for r in caplog.records] == [
        f"{path}: a page is damaged: it is computed anew, and so are others like it"
    ]
    file.close([])


def test_a_page_under_another_key_is_not_good(tmp_path: Path) -> None:
    """Data of an earlier page under a new record, as a loss of power may leave it."""
    path = leave(tmp_path)
    data = path.read_bytes()
    spoil(path, block_at(1), data[block_at(2) : block_at(3)])
    file = made(tmp_path)
    assert not good(file, 1)
    file.fetch(key(9), 2)
    assert not news(file)[2]
    file.close([])


def test_a_torn_record_is_not_there(tmp_path: Path) -> None:
    path = leave(tmp_path)
    spoil(path, HEADER_BYTES + RECORD.size + 3, b"\xff")
    file = made(tmp_path)
    assert list(file.stored()) == [(key(n), n) for n in (2, 3)]
    file.close([])


def header(path: Path, **changes: Any) -> bytes:
    """The header with other values, and a checksum that fits."""
    names = ("magic", "version", "made_by", "page_bytes", "num_blocks", "crc")
    found = dict(zip(names, page_file.HEADER.unpack(path.read_bytes()[: page_file.HEADER.size]), strict=True))
    said = page_file.HEADER.pack(*(found | changes).values())[:-4]
    return said + struct.pack("<I", page_file.zlib.crc32(said))


def older(path: Path) -> None:
    spoil(path, 0, header(path, version=0))


def torn(path: Path) -> None:
    spoil(path, 20, b"\0\1\2")


def cut(path: Path) -> None:
    os.truncate(path, block_at(2) + 7)


def nothing(path: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("spoiled", "options", "why"),
    [
        (older, {}, OLDER),
        (torn, {}, "the header is damaged"),
        (cut, {}, "the file is cut off"),
        (nothing, {"made_by": {**MADE_BY, "model": "n"}}, OTHER),
        (nothing, {"blocks": BLOCKS + 1}, "prefix_cache_disk_space has changed"),
    ],
    ids=["older", "torn", "cut", "model", "size"],
)  # fmt: skip
def test_another_file_is_made_anew(
    tmp_path: Path,
    spoiled: Callable[[Path], None],
    options: dict[str, Any],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = leave(tmp_path)
    spoiled(path)
    file = made(tmp_path, **options)
    assert [r.message for r in caplog.records] == [f"{path}: {why}: it is made anew"]
    assert list(file.stored()) == []
    assert not good(file, 1)
    file.save(key(4), 4, content(4))
    assert news(file) == {4: True}
    file.close([(key(4), 4)])
    again = made(tmp_path, **options)
    assert list(again.stored()) == [(key(4), 4)]
    again.close([])


PRECIOUS = b"something else altogether" * 400


def symlink(path: Path, target: Path) -> None:
    path.symlink_to(target)


def hard_link(path: Path, target: Path) -> None:
    os.link(target, path)


def foreign(path: Path, target: Path) -> None:
    target.rename(path)
    target.symlink_to(path)


def fifo(path: Path, target: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, target: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (symlink, "it is a link"),
        (hard_link, "it has another name too (a hard link)"),
        (foreign, "it is no file of Octavo's prefix cache and stays as it is"),
        (fifo, "it is no plain file"),
        (folder, "Is a directory"),
    ],
)
def test_what_is_not_our_own_is_neither_used_nor_touched(
    tmp_path: Path, put: Callable[[Path, Path], None], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "precious"
    target.write_bytes(PRECIOUS)
    (where := tmp_path / "cache").mkdir()
    path = where / FILE_NAME
    put(path, target)
    assert opened(where) is None
    assert target.read_bytes() == PRECIOUS
    assert [r.message for r in caplog.records] == [f"{path}: {why}: the prefix cache does without a disk"]


def test_another_users_file_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = leave(tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(page_file.os, "geteuid", lambda: os.getuid() + 1)
    assert opened(tmp_path) is None
    assert path.read_bytes() == before


@pytest.mark.parametrize(("mode", "kept"), [(0o600, True), (0o644, True), (0o666, False), (0o620, False)])
def test_others_may_not_read_it_and_what_they_may_have_written_is_not_used(
    tmp_path: Path, mode: int, kept: bool
) -> None:
    path = leave(tmp_path)
    path.chmod(mode)
    file = made(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert bool(file.stored()) is kept
    file.close([])


def test_a_folder_that_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    made(tmp_path / "new").close([])
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


@pytest.mark.parametrize("size", [0, 3, 8, 40, HEADER_BYTES])
def test_a_file_whose_making_was_cut_short_is_known_for_ours(tmp_path: Path, size: int) -> None:
    path = leave(tmp_path)
    os.truncate(path, size)
    if size == 3:  # never seen: its first bytes are written together
        return
    file = made(tmp_path)
    assert list(file.stored()) == []
    file.save(key(4), 4, content(4))
    assert news(file) == {4: True}
    file.close([])


class Panic(BaseException):
    """No Exception."""


@pytest.mark.parametrize("error", [MemoryError("no room"), struct.error("too large"), Panic("rust")])
def test_whatever_a_write_raises_the_thread_lives_and_nobody_waits_for_ever(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = filled(tmp_path)

    def fail(*_: Any) -> bool:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(PrefixFile, "_write", fail)
        file.save(key(7), 7, content(7))
        assert news(file) == {7: False}
        patch.setattr(PrefixFile, "_is_whole", fail)
        file.fetch(key(1), 1)
        assert news(file) == {1: False}
    assert file.max_saving == 0
    assert [r.message for r in caplog.records] == [
        f"{tmp_path / FILE_NAME}: {type(error).__name__}: {error}: no more pages are saved to disk"
    ]
    assert good(file, 1)
    file.close([(key(1), 1)])


def test_an_order_that_leaves_none_for_the_next_is_made_up(tmp_path: Path) -> None:
    path = leave(tmp_path)
    spoil(path, HEADER_BYTES + RECORD.size, page_file._record(key(1), 2**64 - 1, 0))
    file = made(tmp_path)
    assert [found for found, _ in file.stored()] == [key(2), key(3)]
    file.save(key(4), 4, content(4))
    assert news(file) == {4: True}
    file.close([])


def test_a_file_cut_between_check_and_read_is_an_error_and_no_signal(tmp_path: Path) -> None:
    file = filled(tmp_path)
    assert good(file, 1)
    os.truncate(tmp_path / FILE_NAME, block_at(1) + 100)
    with pytest.raises(OSError, match="was cut by somebody else"):
        file.page(1)
    file.close([])


def test_the_second_process_does_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = filled(tmp_path)
    assert opened(tmp_path) is None
    path = tmp_path / FILE_NAME
    assert [r.message for r in caplog.records] == [
        f"{path}: another process uses it: the prefix cache does without a disk"
    ]
    first.close([(key(1), 1)])
    third = made(tmp_path)
    assert good(third, 1)
    third.close([])


def test_a_disk_that_cannot_be_written_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(page_file.os, "open", refuse)
    assert opened(tmp_path) is None
    assert [r.message for r in caplog.records] == [
        f"{tmp_path / FILE_NAME}: Read-only file system: the prefix cache does without a disk"
    ]


def test_a_full_disk_ends_writing_and_not_reading(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = filled(tmp_path)

    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(page_file.os, "pwrite", refuse)
        file.save(key(7), 7, content(7))
        assert news(file) == {7: False}
    assert file.max_saving == 0
    file.save(key(8), 8, content(8))
    assert news(file) == {8: False}
    assert [(r.levelno, r.message) for r in caplog.records] == [
        (
            logging.WARNING,
            f"{tmp_path / FILE_NAME}: No space left on device: no more pages are saved to disk",
        )
    ]
    assert good(file, 1)
    file.close([(key(1), 1)])


def test_a_file_that_somebody_cuts_is_an_error_and_no_crash(tmp_path: Path) -> None:
    file = filled(tmp_path)
    os.truncate(tmp_path / FILE_NAME, 100)
    assert not good(file, 1)
    with pytest.raises(OSError, match="was cut by somebody else"):
        file.page(1)
    file.close([])


def test_what_it_says_of_the_folder(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("x")
    with pytest.raises(InvalidRequestError, match=f"prefix_cache_dir {taken} is not a folder"):
        opened(taken)
    with pytest.raises(
        CapacityError, match=r"prefix_cache_disk_space of 4096 bytes holds no page; one needs 9144"
    ):
        opened(tmp_path, blocks=0)
    file = made(tmp_path / "new" / "folder")
    assert stat.S_IMODE((tmp_path / "new" / "folder" / FILE_NAME).stat().st_mode) == 0o600
    file.close([])


def test_it_stays_within_its_bound(tmp_path: Path) -> None:
    file = filled(tmp_path, range(BLOCKS))
    assert (tmp_path / FILE_NAME).stat().st_size == HEADER_BYTES + BLOCKS * (PAGE + RECORD.size)
    file.close([])


def check_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(page_file, "_checksum", lambda key, page: 1)


def take_any_version(patch: pytest.MonkeyPatch) -> None:
    def mutant(path: Path, fd: int, *_: Any) -> None:
        if os.fstat(fd).st_size == 0:
            prepare(path, fd, *_)

    prepare = page_file._prepare
    patch.setattr(page_file, "_prepare", mutant)


def take_any_record(patch: pytest.MonkeyPatch) -> None:
    def mutant(record: bytes) -> Any:
        key, order, checksum, _ = RECORD.unpack(record)
        return (key, order, checksum) if order else None

    patch.setattr(page_file, "_parsed", mutant)


def follow_links(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(page_file.os, "O_NOFOLLOW", 0)


def own_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(page_file, "_check_owned", lambda fd: None)


def lock_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(page_file.fcntl, "flock", lambda *_: None)


@pytest.mark.parametrize(
    ("mutate", "test"),
    [
        (check_nothing, lambda path, log: test_a_damaged_page_is_not_good(path, 17, log)),
        (check_nothing, lambda path, log: test_a_page_under_another_key_is_not_good(path)),
        (
            take_any_version,
            lambda path, log: test_another_file_is_made_anew(path, older, {}, OLDER, log),
        ),
        (
            take_any_version,
            lambda path, log: test_another_file_is_made_anew(path, nothing, {"made_by": {}}, OTHER, log),
        ),
        (take_any_record, lambda path, log: test_a_torn_record_is_not_there(path)),
        (lock_nothing, lambda path, log: test_the_second_process_does_without(path, log)),
        (
            follow_links,
            lambda path, log: test_what_is_not_our_own_is_neither_used_nor_touched(path, symlink, "", log),
        ),
        (
            own_everything,
            lambda path, log: test_what_is_not_our_own_is_neither_used_nor_touched(path, hard_link, "", log),
        ),
    ],
    ids=["checksum", "checksum and key", "version", "model", "record", "lock", "links", "owner"],
)  # fmt: skip
def test_the_mutant_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None],
    test: Callable[[Path, pytest.LogCaptureFixture], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        test(tmp_path, caplog)
