"""The tmpfs mounts that a job has of its own, held open from outside, so that what is in them is the kernel's word.

Init opens them before anything of the job runs, and passes them on. They are asked how full they are (statfs(2)), during the job's
life and once more when its last process is gone; nothing in them is ever looked at. While they are held their memory is not given
back, so they are closed before the job's cgroup is removed. Freeing a large one takes time: closing blocks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Filling:
    """How full one place is: bytes and inodes (files, directories, links), in use and at most."""

    used_bytes: int
    max_bytes: int
    used_inodes: int
    max_inodes: int

    @property
    def is_out_of_bytes(self) -> bool:
        return self.used_bytes >= self.max_bytes

    @property
    def is_out_of_inodes(self) -> bool:
        return self.used_inodes >= self.max_inodes


class ScratchPlaces:
    """Descriptors of a job's own tmpfs mounts by the path that they have inside; owned by its sandbox."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def take(self, paths: list[str], descriptors: list[int]) -> None:
        """Takes over the descriptors, one for each path; once."""
        if self._descriptors:
            raise ValueError("the places are known already")
        self._descriptors = dict(zip(paths, descriptors, strict=True))

    def measure(self) -> dict[str, Filling]:
        """How full each place is now; nothing where init could not pass them on."""
        return {path: _filling(os.fstatvfs(descriptor)) for path, descriptor in self._descriptors.items()}

    def close(self) -> None:
        """Lets go of them. Blocks while the kernel frees what was in them."""
        descriptors, self._descriptors = self._descriptors, {}
        for descriptor in descriptors.values():
            os.close(descriptor)


def _filling(found: os.statvfs_result) -> Filling:
    return Filling(
        used_bytes=(found.f_blocks - found.f_bfree) * found.f_frsize,
        max_bytes=found.f_blocks * found.f_frsize,
        used_inodes=found.f_files - found.f_ffree,
        max_inodes=found.f_files,
    )
