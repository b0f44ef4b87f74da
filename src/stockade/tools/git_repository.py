"""Where a repository's parts lie on this host, and which paths are inside of it (`resolvePathWithinRoot` of 1A.9).

A sandbox shows the root and nothing around it, so a repository that keeps a part elsewhere (a linked worktree, a submodule, a clone
that borrows objects) is refused here, with its reason, and not by a puzzled git. Everything here blocks, and reads only regular
files of bounded size: what lies in a repository is untrusted.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Final

from stockade.confinement import MAX_PATH, follow, is_inside
from stockade.errors import InvalidRequest, NotAllowed

_SMALL: Final = 65_536  # bytes of a file that names other places
_PARTS: Final = ("HEAD", "config", "config.worktree", "index", "info", "logs", "objects", "packed-refs", "refs")


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository whose parts all lie below `root`, by their real paths; `bare` ones have no files checked out."""

    root: str
    git_dir: str
    bare: bool
    private: str | None  # the first part that only its owner can read, where jobs run as somebody else


def locate(repo_root: str) -> Repository:
    """The repository whose top-level directory is `repo_root`, which may be a link.

    Raises: InvalidRequest(repo_root) where there is none, or a part of it lies outside.
    """
    try:
        root = os.path.realpath(repo_root, strict=True)
    except OSError as error:
        raise _unusable(f"{repo_root!r} cannot be used: {error.strerror}") from None
    if not os.path.isdir(root):
        raise _unusable(f"{repo_root!r} is not a directory")
    git_dir = _git_dir(root)
    if not all(os.path.lexists(f"{git_dir}/{name}") for name in ("HEAD", "objects")) and not os.path.exists(f"{git_dir}/commondir"):
        raise _unusable(f"{repo_root!r} has no git repository in it")
    _check_parts(git_dir, root)
    return Repository(root, git_dir, bare=git_dir == root, private=_private_part(root, git_dir))


def resolve_path_within_root(target: str, root: str) -> str:
    """`target` relative to the real directory `root`, as git names it; what does not exist is resolved as far as it does.

    The last name is kept where it is a link, because git tracks links by their own names; it may not lead outside all the same.

    Raises: NotAllowed where it lies outside; InvalidRequest where it is longer than a path can be.
    """
    if len(target) >= MAX_PATH:
        raise InvalidRequest(f"path: {len(target)} characters are more than a path can have", field="path", hint=f"at most {MAX_PATH - 1}")
    joined = os.path.join(root, target)
    _check_inside(target, joined, root)
    stripped = joined.rstrip("/")
    parent, name = os.path.split(stripped)
    named = os.path.realpath(stripped) if name in ("", ".", "..") else os.path.join(os.path.realpath(parent), name)
    if not is_inside(named, root):  # the root by another name, such as "../here"
        named = os.path.realpath(joined)
    _check_inside(target, named, root)
    return os.path.relpath(named, root)


def _check_inside(target: str, path: str, root: str) -> None:
    led = follow(path, [root])
    if led.root is None:
        raise NotAllowed(
            f"access denied: path {target!r:.200} resolves to {led.path!r:.200}, outside the permitted root {root!r}",
            field="path",
            hint="name a path inside it, relative to the root",
        )


def _git_dir(root: str) -> str:
    dot_git = f"{root}/.git"
    if not os.path.lexists(dot_git):
        return root  # a bare one, if it is one
    if not os.path.isfile(dot_git):
        return _inside(dot_git, root, "its .git")
    # A linked worktree or a submodule: the file says where the repository is.
    first = _read_small(dot_git).partition("\n")[0]
    if not first.startswith("gitdir: "):
        raise _unusable(f"{dot_git!r} is a file that does not say where the repository is")
    place = os.path.join(root, first.removeprefix("gitdir: ").strip())
    return _inside(place, root, "it is a linked worktree or a submodule whose repository")


def _check_parts(git_dir: str, root: str) -> None:
    """Everything that git reads has to be where the sandbox shows it."""
    common = git_dir
    if os.path.isfile(f"{git_dir}/commondir"):
        common = _inside(os.path.join(git_dir, _read_small(f"{git_dir}/commondir").strip()), root, "its common directory")
    for directory in {git_dir, common}:
        for part in _PARTS:
            if os.path.lexists(f"{directory}/{part}"):
                _inside(f"{directory}/{part}", root, f"its {part}")
    objects = f"{common}/objects"
    if os.path.isfile(f"{objects}/info/alternates"):
        for line in _read_small(f"{objects}/info/alternates").splitlines():
            if line and not line.startswith("#"):
                _inside(os.path.join(objects, line), root, "it borrows objects from a repository that")


def _private_part(root: str, git_dir: str) -> str | None:
    if os.geteuid() != 0:
        return None  # jobs have the caller's own id
    for path in (root, git_dir, *(f"{git_dir}/{part}" for part in _PARTS)):
        try:
            found = os.stat(path)
        except OSError:
            continue
        needed = 0o005 if stat.S_ISDIR(found.st_mode) else 0o004
        if found.st_mode & needed != needed:
            return path
    return None


def _inside(path: str, root: str, what: str) -> str:
    real = os.path.realpath(path)
    if not is_inside(real, root):
        raise _unusable(
            f"the repository in {root!r} cannot be read alone: {what} is at {real!r}, outside the permitted root",
            "register a repository that holds all its parts, such as the main working tree, or a full clone (git clone --no-local)",
        )
    return real


def _read_small(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a fifo must not hold us up
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _unusable(f"{path!r} is not a regular file")
            return os.fsdecode(os.read(descriptor, _SMALL))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unusable(f"{path!r} cannot be read: {error.strerror}") from None


def _unusable(message: str, hint: str = "give register_git_tools the top-level directory of a git repository") -> InvalidRequest:
    return InvalidRequest(f"repo_root: {message}", field="repo_root", hint=hint)
