"""Reads seccomp profiles (OCI runtime-spec JSON) and compiles them into the bytes that seccomp(2) loads.

The compiling happens in the parent, once per profile; init only receives the bytes. What is not understood is refused:
a part of a profile that is passed over in silence would be a hole. Within one syscall the first matching rule decides.

An argument that the kernel declares as `int` or `unsigned int` is compared by its low 32 bits alone, because the kernel
throws the rest away: a filter that compared 64 bits would be passed by request 0x1_0000_5412 (CVE-2019-10063).

seccomp(2), config-linux.md of the OCI runtime-spec; SECCOMP_RET_KILL_PROCESS needs Linux 4.14.
"""

from __future__ import annotations

import difflib
import enum
import errno
import json
import os
from dataclasses import dataclass
from typing import Any

from stockade.errors import PolicyError
from stockade.sandbox import syscall_tables
from stockade.sandbox.bpf import (
    ARCH_OFFSET,
    MAX_ARGUMENT,
    MAX_INSTRUCTIONS,
    NR_OFFSET,
    WORD,
    Assembler,
    Compare,
    Condition,
    Op,
    Return,
    Target,
)
from stockade.sandbox.syscall_arguments import LOW_WORD_ARGUMENTS

BUILT_IN = ("default", "debug", "strict")

_X32_BIT = 0x4000_0000
_ARCHITECTURES = {
    "x86_64": ("SCMP_ARCH_X86_64", 0xC000_003E, syscall_tables.X86_64),  # AUDIT_ARCH_X86_64
    "aarch64": ("SCMP_ARCH_AARCH64", 0xC000_00B7, syscall_tables.AARCH64),
}
# These may be listed, since other runtimes want them listed; their calls kill the process all the same.
_FOREIGN = frozenset({"SCMP_ARCH_X86", "SCMP_ARCH_X32", "SCMP_ARCH_ARM"})
_KNOWN_NAMES = syscall_tables.X86_64.keys() | syscall_tables.AARCH64.keys()


class Action(enum.StrEnum):
    """What happens to a call, by its OCI name."""

    ALLOW = "SCMP_ACT_ALLOW"
    LOG = "SCMP_ACT_LOG"  # allow, and write it to the audit log
    ERRNO = "SCMP_ACT_ERRNO"
    TRAP = "SCMP_ACT_TRAP"  # SIGSYS, which can be caught
    KILL_PROCESS = "SCMP_ACT_KILL_PROCESS"


_RETURN_VALUES = {
    Action.ALLOW: 0x7FFF_0000,
    Action.LOG: 0x7FFC_0000,
    Action.ERRNO: 0x0005_0000,
    Action.TRAP: 0x0003_0000,
    Action.KILL_PROCESS: 0x8000_0000,
}
_REFUSED_ACTIONS = {
    "SCMP_ACT_NOTIFY": "nobody listens for notifications here; use SCMP_ACT_ERRNO",
    "SCMP_ACT_TRACE": "nobody traces the job; use SCMP_ACT_ERRNO",
    "SCMP_ACT_KILL": "it ends one thread and leaves the others with its locks held; use SCMP_ACT_KILL_PROCESS",
    "SCMP_ACT_KILL_THREAD": "it ends one thread and leaves the others with its locks held; use SCMP_ACT_KILL_PROCESS",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """An action, and the errno for ERRNO (0: the call pretends to have succeeded)."""

    action: Action
    errno: int = 0

    @property
    def return_value(self) -> int:
        """What the filter returns to the kernel."""
        return _RETURN_VALUES[self.action] | self.errno


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: it matches a call of one of `names` for which all conditions hold."""

    names: tuple[str, ...]
    verdict: Verdict
    conditions: tuple[tuple[int, Compare, int, int], ...] = ()  # index, compare, value, valueTwo
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """A seccomp profile that has been checked; `origin` says where it came from, for error texts."""

    origin: str
    default: Verdict
    rules: tuple[Rule, ...]
    architectures: tuple[str, ...] = ()  # OCI names; empty: every supported one


def profile_directories() -> tuple[str, ...]:
    """Where the built-in profiles are looked for: inside the installed package, then in a source checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.join(package, "seccomp_profiles"), os.path.join(os.path.dirname(os.path.dirname(package)), "seccomp")


def load_profile(name: str) -> Profile:
    """The built-in profile of that name.

    Raises:
        PolicyError: there is no such profile, or its file is missing or damaged.
    """
    if name not in BUILT_IN:
        raise _error(f"no seccomp profile is named {name!r}", hint=f"the profiles are: {', '.join(BUILT_IN)}")
    for directory in profile_directories():
        path = os.path.join(directory, f"{name}.json")
        try:
            with open(path, encoding="utf-8") as file:
                return parse_profile(file.read(), origin=path)
        except FileNotFoundError:
            continue
    looked = " and ".join(profile_directories())
    raise _error(f"the file of seccomp profile {name!r} is missing from {looked}", hint="install stockade again")


def parse_profile(text: str, *, origin: str) -> Profile:
    """Reads an OCI seccomp profile; `origin` is named in errors.

    Raises:
        PolicyError: it is no valid profile, or it asks for what this compiler does not do.
    """
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise _error(f"{origin}: not readable as JSON: {error}") from error
    top = _fields(document, origin, {"defaultAction", "defaultErrnoRet", "architectures", "syscalls", "flags"})
    if top.get("flags"):
        raise _error(f"{origin}: filter flags are not supported: {top['flags']!r}", hint="leave `flags` out")
    default = _verdict(top.get("defaultAction"), top.get("defaultErrnoRet"), origin, "defaultErrnoRet")
    rules = _list(top.get("syscalls", []), f"{origin}: syscalls")
    return Profile(
        origin=origin,
        default=default,
        rules=tuple(_rule(rule, f"{origin}: rule {number}") for number, rule in enumerate(rules)),
        architectures=_architectures(top.get("architectures", []), origin),
    )


def compile_profile(profile: Profile, arch: str) -> bytes:
    """The profile as an array of `struct sock_filter` for "x86_64" or "aarch64".

    Foreign architectures are killed, x32 gets ENOSYS, and a name that only the other architecture knows is left out.

    Raises:
        PolicyError: the architecture is not covered, rules contradict each other, or the program is too long.
    """
    if arch not in _ARCHITECTURES:
        raise _error(f"no seccomp filter can be made for {arch!r}", hint=f"supported: {', '.join(_ARCHITECTURES)}")
    oci_name, audit_arch, table = _ARCHITECTURES[arch]
    if profile.architectures and oci_name not in profile.architectures:
        raise _error(f"{profile.origin}: the profile does not cover {arch}", hint=f"add {oci_name} to `architectures`")
    assembler = Assembler()
    tree = assembler.search(_ranges(assembler, _group(profile, table), table, profile.default))
    if arch == "x86_64":
        tree = assembler.branch(Op.JSET, _X32_BIT, _end(Verdict(Action.ERRNO, errno.ENOSYS)), tree)
    native = assembler.load(NR_OFFSET, tree)
    assembler.load(ARCH_OFFSET, assembler.branch(Op.JEQ, audit_arch, native, _end(Verdict(Action.KILL_PROCESS))))
    if len(assembler) > MAX_INSTRUCTIONS:
        raise _error(
            f"{profile.origin}: the filter has {len(assembler)} instructions and the kernel takes {MAX_INSTRUCTIONS}",
            hint="use fewer rules with arguments",
        )
    return assembler.program()


def _group(profile: Profile, table: dict[str, int]) -> dict[str, list[tuple[int, Rule]]]:
    """The rules of each syscall that this architecture has, in order; repetitions of a final rule are left out."""
    grouped: dict[str, list[tuple[int, Rule]]] = {}
    for number, rule in enumerate(profile.rules):
        for name in dict.fromkeys(rule.names):
            if name in table:
                earlier = grouped.setdefault(name, [])
                if not earlier or earlier[-1][1].conditions:
                    earlier.append((number, rule))
                elif rule.conditions or rule.verdict != earlier[-1][1].verdict:
                    raise _unreachable(profile, name, number, earlier[-1][0])
    return grouped


def _unreachable(profile: Profile, name: str, number: int, earlier: int) -> PolicyError:
    return _error(
        f"{profile.origin}: rule {number} for {name!r} conflicts with rule {earlier}, which decides every call of it",
        hint="put rules with args first, and keep one rule without args for each syscall",
    )


def _ranges(
    assembler: Assembler, grouped: dict[str, list[tuple[int, Rule]]], table: dict[str, int], default: Verdict
) -> list[tuple[int, Target]]:
    """(first number, entry) for every stretch of syscall numbers that is decided alike, in ascending order."""
    targets: dict[int, Target] = {}
    for name in sorted(grouped, key=lambda name: table[name]):
        targets[table[name]] = _check(assembler, name, [rule for _, rule in grouped[name]], default)
    ranges: list[tuple[int, Target]] = []
    for number in sorted({0, *targets, *(number + 1 for number in targets)}):
        target = targets.get(number, _end(default))
        if not ranges or ranges[-1][1] != target:
            ranges.append((number, target))
    return ranges


def _check(assembler: Assembler, name: str, rules: list[Rule], default: Verdict) -> Target:
    """The code that decides one syscall: the first rule whose conditions all hold, or the default."""
    low_words = LOW_WORD_ARGUMENTS.get(name, ())
    entry: Target = _end(default)
    for rule in reversed(rules):
        otherwise, entry = entry, _end(rule.verdict)
        for index, compare, value, masked in reversed(rule.conditions):
            condition = Condition(index, compare, value, masked, low_word=index in low_words)
            entry = assembler.condition(condition, entry, otherwise)
    return entry


def _end(verdict: Verdict) -> Return:
    return Return(verdict.return_value)


def _rule(value: Any, where: str) -> Rule:
    rule = _fields(value, where, {"names", "action", "errnoRet", "args", "comment"})
    names = _list(rule.get("names"), f"{where}: names")
    if not names:
        raise _error(f"{where}: names is empty", hint="name at least one syscall")
    for name in names:
        _known_name(name, where)
    where = f"{where} ({names[0]}{', …' if len(names) > 1 else ''})"
    comment = rule.get("comment", "")
    if not isinstance(comment, str):
        raise _error(f"{where}: comment is no text: {comment!r}")
    conditions = tuple(_condition(arg, names, where) for arg in _list(rule.get("args") or [], f"{where}: args"))
    return Rule(tuple(names), _verdict(rule.get("action"), rule.get("errnoRet"), where, "errnoRet"), conditions, comment)


def _known_name(name: Any, where: str) -> None:
    if not isinstance(name, str):
        raise _error(f"{where}: a syscall name is no text: {name!r}")
    if name not in _KNOWN_NAMES:
        close = difflib.get_close_matches(name, sorted(_KNOWN_NAMES), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "take it out, or correct its spelling"
        raise _error(f"{where}: neither x86-64 nor aarch64 has a syscall named {name!r}", hint=hint)


def _condition(value: Any, names: list[str], where: str) -> tuple[int, Compare, int, int]:
    arg = _fields(value, f"{where}: args", {"index", "value", "valueTwo", "op"})
    index = _number(arg.get("index"), MAX_ARGUMENT, f"{where}: index")
    try:
        compare = Compare(str(arg.get("op")))
    except ValueError as error:
        known = ", ".join(Compare)
        raise _error(f"{where}: unknown op {arg.get('op')!r}", hint=f"the ops are: {known}") from error
    narrow = any(index in LOW_WORD_ARGUMENTS.get(name, ()) for name in names)
    limit = WORD if narrow else WORD | WORD << 32
    first = _number(arg.get("value"), limit, f"{where}: value of argument {index}")
    second = _number(arg.get("valueTwo", 0), limit, f"{where}: valueTwo of argument {index}")
    if compare is not Compare.MASKED_EQ and second:
        raise _error(f"{where}: {compare} takes no valueTwo", hint="leave valueTwo out, or use SCMP_CMP_MASKED_EQ")
    if compare is Compare.MASKED_EQ and second & ~first:
        raise _error(
            f"{where}: argument {index} masked with {first:#x} can never be {second:#x}",
            hint="value is the mask, valueTwo what must be left under it",
        )
    return index, compare, first, second


def _verdict(action: Any, errno_ret: Any, where: str, field: str) -> Verdict:
    if isinstance(action, str) and action in _REFUSED_ACTIONS:
        raise _error(f"{where}: action {action} is not supported: {_REFUSED_ACTIONS[action]}")
    try:
        known = Action(str(action))
    except ValueError as error:
        raise _error(f"{where}: unknown action {action!r}", hint=f"the actions are: {', '.join(Action)}") from error
    if known is not Action.ERRNO:
        if errno_ret is not None:
            raise _error(f"{where}: {field} has no meaning for {known}", hint=f"leave {field} out")
        return Verdict(known)
    number = errno.EPERM if errno_ret is None else _number(errno_ret, max(errno.errorcode), f"{where}: {field}")
    if number and number not in errno.errorcode:
        raise _error(f"{where}: {field} {number} is no error number of Linux")
    return Verdict(known, number)


def _architectures(value: Any, origin: str) -> tuple[str, ...]:
    known = {name for name, _, _ in _ARCHITECTURES.values()} | _FOREIGN
    names = _list(value, f"{origin}: architectures")
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise _error(f"{origin}: unknown architecture {name!r}", hint=f"known are: {', '.join(sorted(known))}")
    return tuple(names)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice in one object")
    return result


def _fields(value: Any, where: str, allowed: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _error(f"{where}: an object is needed, not {value!r:.80}")
    unknown = sorted(value.keys() - allowed)
    if unknown:
        raise _error(
            f"{where}: {unknown[0]!r} is not understood here",
            hint=f"plain OCI profiles are read, without templates; known are: {', '.join(sorted(allowed))}",
        )
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _error(f"{where}: a list is needed, not {value!r:.80}")
    return value


def _number(value: Any, limit: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise _error(f"{where}: a whole number from 0 to {limit:#x} is needed, not {value!r:.80}")
    return value


def _error(message: str, *, hint: str | None = None) -> PolicyError:
    return PolicyError(message, field="seccomp", hint=hint)
