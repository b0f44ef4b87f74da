"""What is refused before a command exists, in the order of contract N (N-V1 to N-V8); each refusal names its way out.

`resolve_within_root` blocks and looks at the disk; everything else is text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Final, TypeVar

from stockade.confinement import find_directory
from stockade.errors import InvalidRequest, NotAllowed
from stockade.policy.checks import listed, text
from stockade.policy.quantities import shown
from stockade.tools.command_policy import BackgroundCommandPolicy

T = TypeVar("T")

NAME_SHOWN: Final = 80  # characters of an executable's name in a refusal
_SHELL: Final = frozenset(";&|<>$`\n\r")


def no_policy() -> NotAllowed:
    """The refusal where no policy is set: nothing may be run by default (N-V1, N-P2)."""
    return NotAllowed(
        "No background command policy is set, so no command may be started. The host must call "
        "set_policy(BackgroundCommandPolicy(allowed_executables=…, cwd_root=…)), which is "
        "setBackgroundCommandPolicy({allowedExecutables, cwdRoot}), or register_background_command_tools(policy), which is "
        "registerBackgroundCommandTools(policy). Until then do the work with other tools.",
        field="policy",
    )


def check_argv(argv: object, policy: BackgroundCommandPolicy) -> tuple[str, ...]:
    """argv as it will be run, checked from N-V2 to N-V6. Raises: InvalidRequest, NotAllowed."""
    if not isinstance(argv, list | tuple) or not argv:
        raise _wrong(
            "argv must be a non-empty array: the executable first, then one entry per argument, "
            'such as ["git", "log", "--oneline"]; never pass one command string.'
        )
    for position, entry in enumerate(argv):
        if not isinstance(entry, str):
            raise _wrong(f"Every entry of argv must be a string, and entry {position} is {shown(entry)}. Pass each argument separately.")
    for position, entry in enumerate(argv):
        if "\0" in entry:
            raise _wrong(f"Entry {position} of argv contains a NUL byte, which is not permitted. Remove it and retry.")
    name = argv[0]
    if not name:
        raise _wrong("argv[0] is empty. Name the executable to run there.")
    if any(character in _SHELL or character.isspace() for character in name):
        raise _wrong(
            f"argv[0] is {bounded(name)}, and there is NO shell: pipes, redirects, semicolons and quoting do nothing here. Put the "
            "executable alone in argv[0] and each argument in its own entry, and run a pipeline as separate commands."
        )
    if name not in policy.allowed_executables:
        raise NotAllowed(
            f"Executable {bounded(name)} is not allowed. Permitted executables: {listed(policy.allowed_executables)}. "
            "Use one of those, exactly as written, or do the work with other tools.",
            field="argv",
        )
    return tuple(argv)


def checked(field: str, check: Callable[[object], T], value: object) -> T:
    """What `check` makes of the value of `field`. Raises: InvalidRequest with the field (U-1)."""
    try:
        return check(value)
    except ValueError as error:
        raise InvalidRequest(f"{field}: {error}", field=field) from None


def resolve_within_root(target: object, root: str) -> tuple[str, str]:
    """The real paths of the directory `target`, relative to the real `root` where it is relative, and of the root (1A.9).

    Raises: InvalidRequest where one of them is no directory; NotAllowed where the target lies outside.
    """
    path = checked("cwd", text, os.fspath(target) if isinstance(target, os.PathLike) else target)
    real_root = _directory(root)
    if real_root is None:
        raise InvalidRequest(
            f"The permitted root {root!r} is not an existing directory. Point cwd_root (cwdRoot) at an existing directory.",
            field="cwd_root",
        )
    led = find_directory(os.path.join(real_root, path), [real_root])
    if led.root is None:
        raise NotAllowed(
            f"Access denied: the working directory {shown(path)} resolves to {led.path!r}, outside the permitted root "
            f"{real_root!r}. Run inside {real_root!r}.",
            field="cwd",
        )
    if led.errno is not None:
        raise InvalidRequest(
            f"The working directory {shown(path)} is not an existing directory. Name one that exists inside {real_root!r}.",
            field="cwd",
        )
    return led.path, real_root


def check_allowlist(policy: BackgroundCommandPolicy, argv: tuple[str, ...], cwd: str) -> None:
    """Asks the policy's hook, last of all; its exceptions go through. Raises: NotAllowed with its text, verbatim (N-V8)."""
    answer = None if policy.allowlist is None else policy.allowlist(argv, cwd)
    if isinstance(answer, str):
        raise NotAllowed(answer, field="argv")


def bounded(name: str) -> str:
    """A name in double quotes, at most 80 characters of it."""
    return json.dumps(name if len(name) <= NAME_SHOWN else name[:NAME_SHOWN] + "…", ensure_ascii=False)


def _directory(path: str) -> str | None:
    try:
        real = os.path.realpath(path, strict=True)
    except OSError:
        return None
    return real if os.path.isdir(real) else None


def _wrong(message: str) -> InvalidRequest:
    return InvalidRequest(message, field="argv")
