"""What the host says about the paths of a request: real paths, whose they are, and whether a program can be seen inside.

Every path is resolved once and pinned by device and inode; the mounts are refused later if it has changed. Nothing is opened for
reading, so a hostile fifo or device in a workspace cannot hold us up.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from errno import ELOOP

from stockade.confinement import find_directory, is_inside
from stockade.errors import ExecutableNotFound, InvalidRequest, NotExecutable
from stockade.launcher.devices import resolve_io
from stockade.sandbox import syscalls
from stockade.sandbox.spec import JOB_HOME, Host, Place, Resolution

_MAX_LINKS = 40  # as the kernel (path_resolution(7))
_OWN_PLACES = (JOB_HOME, "/tmp", "/dev/shm")  # made by the sandbox itself; a job may start there


def resolve_place(path: str, *, field: str, writable: Sequence[str] = ()) -> Place:
    """Looks at one host path that a policy names. Links are followed, but none that lies in one of the directories `writable` (real
    paths): an earlier job may have put it there, to have something else of the host granted to a later one.

    Raises: InvalidRequest(field), where it does not exist, leads through such a link, or is neither a directory nor a regular file.
    """
    given = os.path.normpath(path)
    try:
        real = _real_path(given, writable)
        descriptor = syscalls.openat2(
            syscalls.AT_FDCWD, real, os.O_PATH, resolve=syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
        )
    except OSError as error:
        raise InvalidRequest(f"{field}: {path!r} cannot be used: {error.strerror}", field=field, hint="name a path that exists") from None
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    is_dir = stat.S_ISDIR(found.st_mode)
    if not is_dir and not stat.S_ISREG(found.st_mode):
        raise InvalidRequest(f"{field}: {path!r} is neither a directory nor a regular file", field=field, hint="name a directory or a file")
    if real == "/" or real.split("/")[1] in ("proc", "sys", "dev"):
        raise InvalidRequest(f"{field}: {path!r} is {real!r}, which a sandbox makes for itself", field=field, hint="name a narrower path")
    return Place(given, real, found.st_dev, found.st_ino, found.st_uid, found.st_gid, is_dir)


def _walk(path: str, target_of: Callable[[str], str | None]) -> str:
    """The path without links, one component at a time; `target_of` gives the target of a link and None for what is none.

    Raises: OSError(ELOOP), and what `target_of` raises.
    """
    pending = [name for name in path.split("/") if name not in ("", ".")][::-1]
    current, count = "", 0
    while pending:
        name = pending.pop()
        if name == "..":
            current = current.rpartition("/")[0]
            continue
        here = f"{current}/{name}"
        target = target_of(here)
        if target is None:
            current = here
            continue
        count += 1
        if count > _MAX_LINKS:
            raise OSError(ELOOP, os.strerror(ELOOP), path)
        if target.startswith("/"):
            current = ""
        pending.extend(part for part in reversed(target.split("/")) if part not in ("", "."))
    return current or "/"


def _real_path(path: str, writable: Sequence[str]) -> str:
    """realpath(3). Raises: OSError, also for a link inside one of `writable`."""

    def target_of(here: str) -> str | None:
        if not stat.S_ISLNK(os.lstat(here).st_mode):
            return None
        if any(is_inside(here, top) for top in writable):
            raise OSError(ELOOP, f"{here!r} is a link in a directory that jobs can write to", path)
        return os.readlink(here)

    return _walk(path, target_of)


def resolve(
    *,
    argv0: str,
    cwd: str | None,
    path: tuple[str, ...],
    workspace: str | None,
    ro: tuple[str, ...],
    rw: tuple[str, ...],
    host: Host,
    host_path: str,
    private: str | None = None,
    granted: Iterable[str] = (),
    io: tuple[str, ...] = (),
) -> Resolution:
    """Looks at all paths of one request, and at the devices that its io limits mean.

    `host_path` is where the caller's own programs are, to name a missing one's place.

    `private` is the real path of the executor's own state: no path may bring it into sight, since as root it would then belong to
    the job. `granted` are real paths that earlier jobs, of any policy, could write to.

    Raises: InvalidRequest, ExecutableNotFound; nothing has been made.
    """
    # Twice: what jobs can write to must be known before any path may be followed through it.
    tops = [*granted, *(resolve_place(each, field="rw").real for each in rw)]
    if workspace is not None:
        tops.append(resolve_place(workspace, field="workspace").real)
    base = None if workspace is None else resolve_place(workspace, field="workspace", writable=tops)
    if base is not None and not base.is_dir:
        raise InvalidRequest(f"workspace: {workspace!r} is not a directory", field="workspace", hint="name a directory")
    readable = tuple(resolve_place(each, field="ro", writable=tops) for each in ro)
    writable = tuple(resolve_place(each, field="rw", writable=tops) for each in rw)
    named = (*((base,) if base is not None else ()), *writable, *readable)
    for place in named:
        if private is not None and is_inside(private, place.real):
            raise InvalidRequest(
                f"access denied: {place.given!r} holds {private!r}, where the records of all jobs are kept",
                field=_field_of(place, base, writable),
                hint="name narrower paths, or keep the state elsewhere (state_dir)",
            )
    inside_cwd = _resolve_cwd(cwd, base, named)
    view = View.of(host, named)
    executable = _find_executable(argv0, inside_cwd, path, view, host_path)
    tops_given = (*((base,) if base is not None else ()), *writable)
    return Resolution(
        executable=executable,
        cwd=inside_cwd,
        workspace=base,
        ro=readable,
        rw=writable,
        pins=_pins(readable, tops_given),
        io=resolve_io(io),
    )


def _pins(readable: tuple[Place, ...], writable: tuple[Place, ...]) -> tuple[tuple[Place, Place], ...]:
    """The directories between each read-only path and the innermost writable place around it; no link leads through them."""
    found: dict[str, tuple[Place, Place]] = {}
    for place in readable:
        around = max((top for top in writable if is_inside(place.real, top.real)), key=lambda top: len(top.real), default=None)
        if around is None:
            continue
        directory = os.path.dirname(place.real)
        while directory != around.real and is_inside(directory, around.real):
            found[directory] = (resolve_place(directory, field="ro", writable=(around.real,)), around)
            directory = os.path.dirname(directory)
    return tuple(found.values())


def _field_of(place: Place, workspace: Place | None, writable: tuple[Place, ...]) -> str:
    return "workspace" if place is workspace else "rw" if place in writable else "ro"


def _resolve_cwd(cwd: str | None, workspace: Place | None, named: tuple[Place, ...]) -> str:
    if cwd is None:
        return workspace.real if workspace is not None else JOB_HOME
    if workspace is None and os.path.normpath(cwd) in _OWN_PLACES:
        return os.path.normpath(cwd)
    if not os.path.isabs(cwd) and workspace is None:
        raise InvalidRequest(
            f"cwd: {cwd!r} is relative and the policy has no workspace", field="cwd", hint="set a workspace, or give an absolute path"
        )
    wanted = os.path.join(workspace.real, cwd) if workspace is not None else cwd
    directories = [place for place in named if place.is_dir]
    led = find_directory(wanted, [place.real for place in directories])
    if led.root is None:
        roots = ", ".join(repr(place.real) for place in directories) or "none"
        raise InvalidRequest(
            f"access denied: cwd {cwd!r} leads to {led.path!r}, outside the permitted root {roots}",
            field="cwd",
            hint=f"run inside {named[0].real!r}" if named else "set a workspace in the policy",
        )
    if led.errno is not None:
        raise InvalidRequest(
            f"cwd: {cwd!r} cannot be used: {os.strerror(led.errno)}",
            field="cwd",
            hint="name a directory that exists inside the workspace",
        )
    home = next(place for place in directories if place.real == led.root)
    _pin_directory(home, led.path, cwd)
    return led.path


def _pin_directory(home: Place, real: str, cwd: str) -> None:
    """Walks from the admitted directory down to the working directory without following any link."""
    flags = os.O_PATH | os.O_DIRECTORY
    below = os.path.relpath(real, home.real)
    try:
        top = os.open(home.real, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.close(syscalls.openat2(top, below, flags, resolve=syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS))
        finally:
            os.close(top)
    except OSError as error:
        raise InvalidRequest(
            f"cwd: {cwd!r} is not a directory that can be reached without links: {error.strerror}",
            field="cwd",
            hint="name an existing directory inside the workspace",
        ) from None


@dataclass(frozen=True, slots=True)
class View:
    """Which inside paths show which host paths: (inside, outside), deepest first, and the links at the top."""

    trees: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, host: Host, named: tuple[Place, ...]) -> View:
        trees = [(place.given, place.real) for place in (*host.system, host.etc)]
        trees += [(place.real, place.real) for place in named]
        links = tuple((place.given, place.real) for place in named if place.given != place.real)
        ordered = sorted(trees, key=lambda pair: pair[0].count("/"), reverse=True)
        return cls(tuple(ordered), (*host.links, *links))

    def outside(self, path: str) -> str | None:
        """The host path that is seen at `path`, None where the sandbox has something of its own there."""
        for inside, outside in self.trees:
            if is_inside(path, inside):
                return outside + path[len(inside) :]
        return None

    def follow(self, path: str) -> tuple[str, str | None]:
        """(inside path without links, host path) of `path`; the host path is None where it leads out of sight.

        Raises: OSError, where nothing is there.
        """
        links = dict(self.links)
        reached = _walk(path, lambda here: links[here] if here in links else self._link_at(here))
        return reached, self.outside(reached)

    def _link_at(self, path: str) -> str | None:
        outside = self.outside(path)
        if outside is None:
            return None
        return os.readlink(outside) if stat.S_ISLNK(os.lstat(outside).st_mode) else None


def _find_executable(argv0: str, cwd: str, path: tuple[str, ...], view: View, host_path: str) -> str:
    candidates = [os.path.join(cwd, argv0)] if "/" in argv0 else [f"{directory}/{argv0}" for directory in path]
    hidden = refused = None
    for candidate in candidates:
        try:
            inside, outside = view.follow(candidate)
            if outside is None:
                hidden = hidden or (candidate, inside)
                continue
            found = os.stat(outside, follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o111:
            return candidate
        # As a shell: a directory that happens to have the name of a program is not that program.
        if "/" in argv0 or stat.S_ISREG(found.st_mode):
            refused = refused or candidate
    if refused is not None:
        raise NotExecutable(
            f"executable {refused!r} is there and is not an executable file",
            field="argv",
            hint="make it executable with chmod +x, or name the program that reads it first",
        )
    if hidden is not None and ("/" in argv0 or hidden[0] != hidden[1]):
        raise _hidden(argv0, *hidden)
    raise _not_found(argv0, host_path)


def _hidden(argv0: str, candidate: str, inside: str) -> ExecutableNotFound:
    """What is said of a path that leads out of sight; whether something is there is not looked at, or one could ask for any file."""
    if any(is_inside(inside, place) for place in _OWN_PLACES):
        return _unknown(argv0)
    by = "" if inside == candidate else f": {candidate!r} leads to {inside!r}"
    return ExecutableNotFound(
        f"executable {argv0!r} is not visible inside{by}",
        field="argv",
        hint=_grant(inside) + f" and name the program by its full path {inside!r}",
    )


def _not_found(argv0: str, host_path: str) -> ExecutableNotFound:
    """What is said of a name; where the caller's own PATH has it, the place is named."""
    outside = shutil.which(argv0, path=host_path) if "/" not in argv0 else None
    if outside is None or not os.path.isabs(outside):
        return _unknown(argv0)
    real = os.path.realpath(outside)
    return ExecutableNotFound(
        f"executable {argv0!r} is {real!r} on the host, which is not visible inside",
        field="argv",
        hint=_grant(real) + f" and name the program by its full path {outside!r}",
    )


def _unknown(argv0: str) -> ExecutableNotFound:
    return ExecutableNotFound(
        f"executable {argv0!r} was not found inside the sandbox",
        field="argv",
        hint="check its spelling, or add the ro path that holds it to the policy",
    )


def _grant(program: str) -> str:
    prefix = os.path.dirname(program)
    if os.path.basename(prefix) in ("bin", "sbin", "shims"):
        prefix = os.path.dirname(prefix)
    return f"add the ro path {prefix!r} to the policy (--ro {prefix})"
