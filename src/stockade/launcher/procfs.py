"""What proc(5) tells about the memory of one process of a job. The process is hostile: what it names itself and its files is in there.

Everything is read as bytes and split at line feeds alone, which is all that the kernel escapes in names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")
_BLOCK = 512  # bytes of st_blocks, whatever the file system's own block is (stat(2))


class Vanished(Exception):
    """The process, or what it had, is no longer there."""


class Hidden(Exception):
    """The process has made itself invisible to its own user (PR_SET_DUMPABLE), or the kernel keeps this to root."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: mapped, resident, of page tables, swapped out. `is_init`: it is pid 1 of its namespace."""

    mapped: int
    resident: int
    page_tables: int
    swapped: int
    is_init: bool


@dataclass(frozen=True, slots=True)
class Proportional:
    """Bytes of one process, each shared page by its share: those of shared memory, mapped files of a tmpfs among it, and all others."""

    private: int
    shared: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping of a file: its range as map_files/ names it, and the file."""

    range: str
    inode: int


class Process:
    """One process, by way of a thread of it that lives: proc(5) shows nothing of one whose first thread has ended."""

    def __init__(self, pid: int) -> None:
        """Raises: Vanished, where no thread of it is left."""
        self.number = pid
        self._directory = f"/proc/{pid}"
        self._statm = self.read("statm")
        if self._statm.startswith(b"0 "):
            self._directory = f"/proc/{_living_thread(pid)}"
            self._statm = self.read("statm")

    def read(self, name: str) -> bytes:
        """The bytes of one of its files. Raises: Vanished, Hidden."""
        try:
            descriptor = os.open(f"{self._directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                pieces = []
                while piece := os.read(descriptor, 1 << 16):
                    pieces.append(piece)
                return b"".join(pieces)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, ProcessLookupError):
            raise Vanished from None
        except PermissionError:
            raise self._refusal() from None

    def _refusal(self) -> Vanished | Hidden:
        """Why something may not be read: of a process that is ending, only root may read most of it."""
        try:
            with open(f"{self._directory}/statm", "rb") as statm:
                return Vanished() if statm.read().startswith(b"0 ") else Hidden()
        except OSError:
            return Vanished()

    def memory(self) -> Memory:
        """What it had when it was found, shared or not. Raises: Vanished, where it is ending."""
        mapped, resident = self._statm.split()[:2]
        if mapped == b"0":
            raise Vanished
        status = self.read("status")
        fields = _kilobytes(status)
        return Memory(
            mapped=int(mapped) * _PAGE,
            resident=int(resident) * _PAGE,
            page_tables=fields.get(b"VmPTE", 0),
            swapped=fields.get(b"VmSwap", 0),
            is_init=any(line.startswith(b"NSpid:") and line.endswith(b"\t1") for line in status.split(b"\n")),
        )

    def proportional(self) -> Proportional:
        """Proportional resident and swapped bytes (smaps_rollup). Raises: Vanished, Hidden."""
        fields = _kilobytes(self.read("smaps_rollup"))
        shared = fields.get(b"Pss_Shmem", 0)
        return Proportional(fields.get(b"Pss", 0) + fields.get(b"SwapPss", 0) - shared, shared)

    def descriptors(self) -> list[str]:
        """The numbers of what it holds open. Raises: Vanished, Hidden."""
        try:
            return os.listdir(f"{self._directory}/fd")
        except (FileNotFoundError, ProcessLookupError):
            raise Vanished from None
        except PermissionError:
            raise self._refusal() from None

    def stat(self, name: str) -> tuple[int, int, int]:
        """Device, inode and bytes of the file that a link such as `fd/3` or `exe` stands for. Raises: Vanished, Hidden."""
        try:
            found = os.stat(f"{self._directory}/{name}")
        except PermissionError:
            raise self._refusal() from None
        except OSError:  # closed, unmapped, or of a file system that does not answer
            raise Vanished from None
        return found.st_dev, found.st_ino, found.st_blocks * _BLOCK

    def mappings(self, device: int) -> Iterator[Mapping]:
        """Its mappings of files of a device. Raises: Vanished, Hidden."""
        name = _device_name(device)
        text = self.read("maps")
        if name not in text:
            return
        for line in text.split(b"\n"):
            fields = line.split(None, 5)
            if len(fields) >= 5 and fields[3] == name.strip():
                begin, _, end = fields[0].partition(b"-")
                yield Mapping(f"{int(begin, 16):x}-{int(end, 16):x}", int(fields[4]))

    def shared_by_mapping(self, device: int) -> Iterator[tuple[int | None, int]]:
        """For each mapping the inode, None where it is of another device, and the bytes that are its own share of that file."""
        name = _device_name(device).strip()
        inode, share = None, 0
        is_first = True
        for line in self.read("smaps").split(b"\n"):
            fields = line.split(None, 5)
            if len(fields) >= 5 and b"-" in fields[0] and not fields[0].endswith(b":"):
                if not is_first:
                    yield inode, share
                inode, share, is_first = int(fields[4]) if fields[3] == name else None, 0, False
            elif inode is not None and fields[:1] == [b"Pss:"]:
                share += 1024 * int(fields[1])
            elif inode is not None and fields[:1] == [b"Anonymous:"]:  # copied on writing: private
                share -= 1024 * int(fields[1])
        if not is_first:
            yield inode, share


def _living_thread(pid: int) -> str:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        raise Vanished from None
    for thread in threads:
        try:
            with open(f"/proc/{thread}/statm", "rb") as statm:
                if not statm.read().startswith(b"0 "):
                    return thread
        except OSError:
            continue
    raise Vanished


def _kilobytes(text: bytes) -> dict[bytes, int]:
    """The fields whose unit is kB, in bytes."""
    fields = {}
    for line in text.split(b"\n"):
        name, _, value = line.partition(b":")
        if value.endswith(b" kB"):
            fields[name] = 1024 * int(value[:-3])
    return fields


def _device_name(device: int) -> bytes:
    """A device as a column of maps (proc_pid_maps(5))."""
    return b" %02x:%02x " % (os.major(device), os.minor(device))
