"""Where a path of the host leads, found out without telling what there is outside of the directories that may be seen.

Who asks may be a model, and its question a probe: "/root/.ssh" and "/root/.nothing" must get the same answer. So outside of the
permitted directories a component that is there counts as much as one that is not. Links are followed there as well, since one of
them may lead back inside, which is where they then make a difference; `..` is not, since it would tell a link from a directory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from errno import EINVAL, ELOOP, ENAMETOOLONG
from typing import Final

_MAX_LINKS = 40  # as the kernel (path_resolution(7))
MAX_PATH: Final = 4096  # bytes, with the NUL, as the kernel; to follow a path takes time by the square of its length
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Led:
    """Where a path leads: to `path`, below `root`; or out of sight, by `path`, if `root` is None.

    `errno` says why it is not there, for what would lie inside; None where it is, or where it lies outside.
    """

    path: str
    root: str | None
    errno: int | None = None


def is_inside(path: str, root: str) -> bool:
    """True for `root` itself and what lies below it; a sibling that shares its prefix is outside."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def follow(path: str, roots: Sequence[str]) -> Led:
    """Follows an absolute path, which may be hostile, for who may see what is below `roots` (real paths); blocks.

    A path that leads inside by names that are missing leads inside, with their errno: `..` after them is followed as text.
    """
    if len(path) >= MAX_PATH:
        return Led(path[:_SHOWN], _root_of(os.path.normpath(path), roots), ENAMETOOLONG)
    pending = _parts(path)
    current, links = "", 0
    missing: int | None = None
    left: str | None = None  # by which path the last step outside was made
    while pending:
        name = pending.pop()
        if name == "..":
            if left is not None:
                return Led(left, None)
            current = current.rpartition("/")[0]
            left = _left(current, pending, roots, left)
            continue
        here = f"{current}/{name}"
        left = _left(here, pending, roots, left)
        target = None
        try:
            target = os.readlink(here)
        except OSError as error:
            if left is None and error.errno != EINVAL:
                missing = missing or error.errno
        if target is None:
            current = here
            continue
        links += 1
        if links > _MAX_LINKS:
            return Led(left, None) if left is not None else Led(here, _root_of(here, roots), ELOOP)
        if target.startswith("/"):
            current = ""
        pending.extend(_parts(target))
    led = current or "/"
    root = _root_of(led, roots)
    return Led(led, root, missing) if root is not None else Led(left or led, None)


def find_directory(path: str, roots: Sequence[str]) -> Led:
    """As `follow`, and looks whether it is a directory; blocks."""
    led = follow(path, roots)
    if led.root is None or led.errno is not None:
        return led
    try:
        os.close(os.open(led.path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        return Led(led.path, led.root, error.errno)
    return led


def _parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")][::-1]


def _root_of(path: str, roots: Sequence[str]) -> str | None:
    return next((root for root in roots if is_inside(path, root)), None)


def _left(here: str, pending: list[str], roots: Sequence[str], left: str | None) -> str | None:
    """None where `here` is inside or on the way to it; otherwise the path, as text, by which the outside was entered."""
    if any(is_inside(here, root) or is_inside(root, here or "/") for root in roots):
        return None
    return left or os.path.normpath("/".join((here, *reversed(pending))))
