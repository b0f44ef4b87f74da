"""What the bank's tests share: a bank in a directory of its own, and a small file system that can be filled."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.bank.bank import Bank
from stockade.bank.private import Directory

_LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="package", autouse=True)
def _quick_collections() -> Iterator[None]:
    """What is there before the first test is not looked at again and again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    """A directory is closed by its last holder, which may be a traceback that was caught: collect before leaks are counted."""
    yield
    gc.collect()


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    opened = Bank(tmp_path / "bank")
    yield opened
    opened.close()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    path = tmp_path / "streams"
    path.mkdir(0o700)
    opened = Directory(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path))
    yield opened
    opened.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; needs the right to mount."""
    path = tmp_path / "small"
    path.mkdir()
    if _LIBC.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, b"size=1m,mode=0700") < 0:
        pytest.skip(f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        yield path
    finally:
        _LIBC.umount2(os.fsencode(path), 2)
