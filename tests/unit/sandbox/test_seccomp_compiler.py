"""Compiled filters are compared, call by call, with a plain reading of the profile."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.errors import PolicyError
from stockade.sandbox import syscall_tables
from stockade.sandbox.bpf import Assembler, Op, Return
from stockade.sandbox.seccomp import BUILT_IN, Profile, compile_profile, load_profile, parse_profile
from stockade.sandbox.syscall_arguments import LOW_WORD_ARGUMENTS
from support import bpf

ARCHES = {
    "x86_64": (bpf.X86_64, syscall_tables.X86_64),
    "aarch64": (bpf.AARCH64, syscall_tables.AARCH64),
}
RETURNS = {
    "SCMP_ACT_ALLOW": 0x7FFF_0000,
    "SCMP_ACT_LOG": 0x7FFC_0000,
    "SCMP_ACT_ERRNO": 0x0005_0000,
    "SCMP_ACT_TRAP": 0x0003_0000,
    "SCMP_ACT_KILL_PROCESS": 0x8000_0000,
}
HIGH_BIT = 1 << 32


def holds(name: str, condition: tuple[int, Any, int, int], args: list[int]) -> bool:
    index, compare, value, masked = condition
    given_value = args[index] & 0xFFFF_FFFF if index in LOW_WORD_ARGUMENTS.get(name, ()) else args[index]
    return {
        "EQ": given_value == value,
        "NE": given_value != value,
        "LT": given_value < value,
        "LE": given_value <= value,
        "GT": given_value > value,
        "GE": given_value >= value,
        "MASKED_EQ": given_value & value == masked,
    }[str(compare).removeprefix("SCMP_CMP_")]


def plain_reading(profile: Profile, arch: str, nr: int, audit_arch: int, args: list[int]) -> int:
    """What a call must get: the first rule that names it and whose conditions all hold, or the default."""
    own, table = ARCHES[arch]
    if audit_arch != own:
        return bpf.KILL_PROCESS
    if arch == "x86_64" and nr & 0x4000_0000:
        return bpf.errno_value(38)
    names = [name for name, number in table.items() if number == nr]
    for rule in profile.rules:
        for name in names:
            if name in rule.names and all(holds(name, condition, args) for condition in rule.conditions):
                return RETURNS[str(rule.verdict.action)] | rule.verdict.errno
    return RETURNS[str(profile.default.action)] | profile.default.errno


def build(*rules: dict[str, Any], default: str = "SCMP_ACT_ERRNO", **more: Any) -> Profile:
    document = {"defaultAction": default, "syscalls": list(rules), **more}
    return parse_profile(json.dumps(document), origin="test.json")


def rule(name: str, *args: tuple[int, str, int] | tuple[int, str, int, int], action: str = "ALLOW", **more: Any) -> dict[str, Any]:
    conditions = [
        {"index": index, "op": f"SCMP_CMP_{op}", "value": value, **({"valueTwo": two[0]} if two else {})} for index, op, value, *two in args
    ]
    return {"names": [name], "action": f"SCMP_ACT_{action}", "args": conditions, **more}


def arguments_of_interest(profile: Profile, name: str, dice: random.Random) -> list[list[int]]:
    """The values that the rules for a call mention, their neighbours, and both with high bits set."""
    conditions = [condition for rule in profile.rules if name in rule.names for condition in rule.conditions]
    if not conditions:
        return [[0] * 6, [2**64 - 1] * 6]
    values = {0, 1, 2**31, 2**32 - 1, 2**64 - 1}
    for _, _, value, masked in conditions:
        for known in (value, masked, value ^ masked):
            values |= {known, known + 1, max(known - 1, 0), known | HIGH_BIT, known | 1 << 63}
    found = []
    for index in sorted({index for index, *_ in conditions}):
        for value in sorted(values):
            args = [dice.choice([0, 1, value]) for _ in range(6)]
            args[index] = value & (2**64 - 1)
            found.append(args)
    return found


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_syscall_number_gets_what_the_profile_says(name: str, arch: str) -> None:
    profile = load_profile(name)
    code = bpf.decode(compile_profile(profile, arch))
    audit_arch, table = ARCHES[arch]
    names = {number: known for known, number in table.items()}
    dice = random.Random(7)
    numbers = [*range(601), *(0x4000_0000 | number for number in range(601)), *(dice.getrandbits(32) for _ in range(500))]
    for nr in numbers:
        for args in arguments_of_interest(profile, names.get(nr, ""), dice):
            expected = plain_reading(profile, arch, nr, audit_arch, args)
            assert bpf.run_decoded(code, bpf.seccomp_data(nr, audit_arch, args)) == expected, (nr, names.get(nr), args)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("foreign", [bpf.I386, bpf.ARM, 0, 0xFFFF_FFFF, 0xC000_00F3])
def test_a_foreign_architecture_is_killed_whatever_it_calls(arch: str, foreign: int) -> None:
    code = bpf.decode(compile_profile(load_profile("default"), arch))
    results = {bpf.run_decoded(code, bpf.seccomp_data(nr, foreign)) for nr in range(600)}
    assert results == {bpf.KILL_PROCESS}


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_program_has_no_dead_instructions_and_is_the_same_each_time(name: str, arch: str) -> None:
    program = compile_profile(load_profile(name), arch)
    code = bpf.decode(program)
    assert bpf.reachable(code) == set(range(len(code)))
    assert compile_profile(load_profile(name), arch) == program


words = st.sampled_from([0, 1, 2, 5, 0xFF, 0x5412, 0x8000_0000, 0xFFFF_FFFF])
longs = st.one_of(words, st.builds(lambda high, low: high << 32 | low, words, words))
CALLS = ("read", "ioctl", "mmap", "clone", "socket", "mprotect", "lseek", "mseal", "open", "fcntl", "prctl", "exit")


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(CALLS))
    narrow = LOW_WORD_ARGUMENTS.get(name, ())
    conditions = []
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, 5))
        op = draw(st.sampled_from(["EQ", "NE", "LT", "LE", "GT", "GE", "MASKED_EQ"]))
        value = draw(words if index in narrow else longs)
        if op == "MASKED_EQ":
            conditions.append((index, op, value, draw(longs) & value))
        else:
            conditions.append((index, op, value))
    action = draw(st.sampled_from(["ALLOW", "ERRNO", "TRAP", "LOG", "KILL_PROCESS"]))
    return rule(name, *conditions, action=action, **({"errnoRet": draw(st.integers(0, 40))} if action == "ERRNO" else {}))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    chosen = draw(st.lists(rules(), max_size=25))
    finals = draw(st.lists(st.sampled_from(CALLS), max_size=6, unique=True))
    final_rules = [rule(name, action=draw(st.sampled_from(["ALLOW", "KILL_PROCESS"]))) for name in finals]
    return build(*chosen, *final_rules, default=draw(st.sampled_from(["SCMP_ACT_ERRNO", "SCMP_ACT_ALLOW"])))


@settings(max_examples=150, deadline=None)
@given(profile=profiles(), arch=st.sampled_from(sorted(ARCHES)), data=st.data())
def test_any_profile_compiles_to_what_it_says(profile: Profile, arch: str, data: st.DataObject) -> None:
    code = bpf.decode(compile_profile(profile, arch))
    audit_arch, table = ARCHES[arch]
    argument = st.one_of(longs, st.integers(0, 2**64 - 1))
    calls = st.tuples(st.sampled_from(CALLS), st.lists(argument, min_size=6, max_size=6))
    for name, args in data.draw(st.lists(calls, min_size=1, max_size=15)):
        nr = table.get(name, 5000)
        result = bpf.run_decoded(code, bpf.seccomp_data(nr, audit_arch, args))
        assert result == plain_reading(profile, arch, nr, audit_arch, args), (name, args)


def test_a_program_with_far_jumps_is_right_and_one_over_the_limit_is_refused() -> None:
    """Jump offsets are bytes; distances over 255 need a bridge, and the kernel takes 4,096 instructions."""
    calls = [name for name in sorted(syscall_tables.X86_64) if name not in LOW_WORD_ARGUMENTS]
    many = build(*(rule(name, (2, "EQ", HIGH_BIT * place + 5)) for name in calls for place in range(2)))
    code = bpf.decode(compile_profile(many, "x86_64"))
    assert len(code) > 2500
    assert any(op == 0x05 for op, *_ in code)
    for name in calls:
        for value in (5, HIGH_BIT + 5, 2 * HIGH_BIT + 5, 6):
            nr, args = syscall_tables.X86_64[name], [0, 0, value]
            expected = plain_reading(many, "x86_64", nr, bpf.X86_64, args)
            assert bpf.run_decoded(code, bpf.seccomp_data(nr, bpf.X86_64, args)) == expected, (name, value)
    chain = build(*(rule("mmap", (2, "EQ", place)) for place in range(900)))
    long_code = bpf.decode(compile_profile(chain, "x86_64"))
    for value, expected in ((0, bpf.ALLOW), (899, bpf.ALLOW), (900, bpf.errno_value(1)), (HIGH_BIT, bpf.errno_value(1))):
        assert bpf.run_decoded(long_code, bpf.seccomp_data(9, bpf.X86_64, [0, 0, value])) == expected
    too_many = build(*(rule("mmap", (2, "EQ", place)) for place in range(1100)))
    with pytest.raises(PolicyError, match="4096"):
        compile_profile(too_many, "x86_64")


@pytest.mark.parametrize("between", range(245, 262))
def test_a_branch_reaches_both_sides_at_any_distance(between: int) -> None:
    """A bridge for one side moves the other one step away, which must not push it out of reach."""
    assembler = Assembler()
    otherwise = assembler.load(0, Return(2))
    then = last = assembler.load(0, Return(1))
    for _ in range(between):
        last = assembler.load(0, last)
    assembler.load(0, assembler.branch(Op.JEQ, 5, then, otherwise))
    code = bpf.decode(assembler.program())
    assert bpf.run_decoded(code, bpf.seccomp_data(5, 0)) == 1
    assert bpf.run_decoded(code, bpf.seccomp_data(6, 0)) == 2


def test_several_args_are_all_needed_and_several_rules_are_tried_in_order() -> None:
    profile = build(
        rule("mmap", (1, "GE", 10), (1, "LE", 20), (2, "EQ", 1)),
        rule("mmap", (1, "EQ", 15), action="KILL_PROCESS"),
        rule("mmap", action="ERRNO", errnoRet=22),
    )
    program = compile_profile(profile, "x86_64")
    results = [bpf.run(program, 9, bpf.X86_64, [0, *args]) for args in ([15, 1], [15, 2], [9, 1], [20, 1], [20, 2])]
    assert results == [bpf.ALLOW, bpf.KILL_PROCESS, bpf.errno_value(22), bpf.ALLOW, bpf.errno_value(22)]


def test_a_long_argument_is_compared_whole_and_an_int_by_its_low_word() -> None:
    program = compile_profile(build(rule("mprotect", (2, "EQ", 4)), rule("ioctl", (1, "EQ", 0x5412))), "x86_64")
    assert bpf.run(program, 10, bpf.X86_64, [0, 0, 4]) == bpf.ALLOW
    assert bpf.run(program, 10, bpf.X86_64, [0, 0, HIGH_BIT | 4]) == bpf.errno_value(1)
    assert bpf.run(program, 16, bpf.X86_64, [0, HIGH_BIT | 0x5412]) == bpf.ALLOW


def test_a_name_of_the_other_architecture_is_left_out() -> None:
    profile = build({"names": ["arch_prctl", "read"], "action": "SCMP_ACT_ALLOW"})
    program = compile_profile(profile, "aarch64")
    allowed = [nr for nr in range(600) if bpf.run(program, nr, bpf.AARCH64) == bpf.ALLOW]
    assert allowed == [syscall_tables.AARCH64["read"]]


def test_the_error_number_is_eperm_where_none_is_given() -> None:
    assert build(rule("read", action="ERRNO")).rules[0].verdict.errno == 1
    assert build().default.errno == 1
    assert build(defaultErrnoRet=38).default.errno == 38


REFUSED = {
    "bad json": ("{", "not readable as JSON"),
    "a repeated key": ('{"defaultAction": "SCMP_ACT_ALLOW", "defaultAction": "SCMP_ACT_ERRNO"}', "given twice"),
    "too deep": ("[" * 100_000, "not readable as JSON"),
    "no object": ("[]", "an object is needed"),
    "no default": ("{}", "unknown action None"),
    "a list as action": ({"defaultAction": []}, "unknown action"),
    "unknown action": ({"defaultAction": "SCMP_ACT_MAYBE"}, "SCMP_ACT_KILL_PROCESS"),
    "a template": ({"syscalls": [{**rule("read"), "includes": {"caps": ["CAP_BPF"]}}]}, "rule 0: 'includes'"),
    "moby's archMap": ({"archMap": []}, "'archMap' is not understood"),
    "flags": ({"flags": ["SECCOMP_FILTER_FLAG_SPEC_ALLOW"]}, "flags"),
    "an unknown architecture": ({"architectures": ["SCMP_ARCH_Z80"]}, "SCMP_ARCH_Z80"),
    "notify": ({"syscalls": [rule("read", action="NOTIFY")]}, "rule 0 .read.: action SCMP_ACT_NOTIFY is not supported"),
    "trace": ({"syscalls": [rule("read", action="TRACE")]}, "use SCMP_ACT_ERRNO"),
    "thread kill": ({"syscalls": [rule("read", action="KILL")]}, "use SCMP_ACT_KILL_PROCESS"),
    "a misspelt name": ({"syscalls": [rule("read"), rule("opennat")]}, "rule 1.*'opennat'(.|\n)*did you mean 'openat'"),
    "no name": ({"syscalls": [{"names": [], "action": "SCMP_ACT_ALLOW"}]}, "name at least one"),
    "a number as name": ({"syscalls": [{"names": [3], "action": "SCMP_ACT_ALLOW"}]}, "no text"),
    "bad op": ({"syscalls": [rule("read", (0, "ALMOST", 1))]}, "SCMP_CMP_MASKED_EQ"),
    "index 6": ({"syscalls": [rule("read", (6, "EQ", 1))]}, "index"),
    "true as index": ({"syscalls": [rule("read", (True, "EQ", 1))]}, "index"),
    "a value over 64 bits": ({"syscalls": [rule("read", (0, "EQ", 2**64))]}, "value of argument 0"),
    "a negative value": ({"syscalls": [rule("read", (0, "EQ", -1))]}, "value of argument 0"),
    "a wide value for an int": ({"syscalls": [rule("ioctl", (1, "EQ", 2**32))]}, "from 0 to 0xffffffff"),
    "an impossible mask": ({"syscalls": [rule("mmap", (3, "MASKED_EQ", 1, 3))]}, "can never be 0x3"),
    "valueTwo without a mask": ({"syscalls": [rule("mmap", (3, "EQ", 1, 3))]}, "takes no valueTwo"),
    "an errno without ERRNO": ({"syscalls": [rule("read", errnoRet=1)]}, "errnoRet has no meaning"),
    "no error number": ({"syscalls": [rule("read", action="ERRNO", errnoRet=41)]}, "no error number"),
    "a huge errno": ({"syscalls": [rule("read", action="ERRNO", errnoRet=70_000)]}, "whole number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused(case: str) -> None:
    document, said = REFUSED[case]
    text = document if isinstance(document, str) else json.dumps({"defaultAction": "SCMP_ACT_ERRNO", **document})
    with pytest.raises(PolicyError, match=said) as raised:
        parse_profile(text, origin="test.json")
    assert raised.value.field == "seccomp"
    assert "test.json" in str(raised.value)


@pytest.mark.parametrize(
    "second",
    [rule("read", action="ERRNO"), rule("read", (0, "EQ", 1)), rule("read", (0, "EQ", 1), action="ERRNO")],
    ids=["another action", "args after all", "another action with args"],
)
def test_a_rule_that_can_never_be_reached_is_refused(second: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="rule 1 for 'read' conflicts with rule 0"):
        compile_profile(build(rule("read"), second), "x86_64")


def test_saying_the_same_twice_is_no_conflict() -> None:
    assert compile_profile(build(rule("read"), rule("read")), "x86_64") == compile_profile(build(rule("read")), "x86_64")


def test_architectures_that_are_not_covered_are_refused() -> None:
    arm_only = build(architectures=["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"])
    with pytest.raises(PolicyError, match="SCMP_ARCH_X86_64"):
        compile_profile(arm_only, "x86_64")
    with pytest.raises(PolicyError, match="x86_64, aarch64"):
        compile_profile(build(), "riscv64")
    assert compile_profile(arm_only, "aarch64")


def test_an_unknown_profile_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(PolicyError, match="default, debug, strict"):
        load_profile("../default")
