"""An interpreter of the classic BPF that seccomp accepts, over struct seccomp_data; it also makes the kernel's own checks.

A second, independent reading of the bytes: it shares no code with the compiler.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

X86_64 = 0xC000_003E
AARCH64 = 0xC000_00B7
I386 = 0x4000_0003
ARM = 0x4000_0028

ALLOW = 0x7FFF_0000
KILL_PROCESS = 0x8000_0000
KILL_THREAD = 0


def errno_value(number: int) -> int:
    return 0x0005_0000 | number


def seccomp_data(nr: int, arch: int, args: Sequence[int] = (), instruction_pointer: int = 0x5555_0000_1000) -> bytes:
    full = [*args, *[0] * (6 - len(args))]
    return struct.pack("<IIQ6Q", nr & 0xFFFF_FFFF, arch, instruction_pointer, *full)


def decode(program: bytes) -> list[tuple[int, int, int, int]]:
    """The instructions, after the checks that the kernel makes when it loads a filter."""
    assert len(program) % 8 == 0
    code = list(struct.iter_unpack("<HBBI", program))
    assert 0 < len(code) <= 4096
    for place, (op, jt, jf, k) in enumerate(code):
        match op:
            case 0x20:
                assert k in range(0, 64, 4), f"{place}: load from {k}"
            case 0x54 | 0x06:
                pass
            case 0x05:
                assert place + 1 + k < len(code), f"{place}: jump past the end"
            case 0x15 | 0x25 | 0x35 | 0x45:
                assert place + 1 + max(jt, jf) < len(code), f"{place}: jump past the end"
            case _:
                raise AssertionError(f"{place}: opcode {op:#x}")
        if op not in (0x15, 0x25, 0x35, 0x45):
            assert jt == jf == 0, f"{place}: jump offsets on {op:#x}"
    assert code[-1][0] == 0x06, "the last instruction is no return"
    return code


def run_decoded(code: Sequence[tuple[int, int, int, int]], data: bytes) -> int:
    """What the filter returns for this call."""
    words = struct.unpack("<16I", data)
    accumulator = pc = 0
    while True:
        op, jt, jf, k = code[pc]
        pc += 1
        if op == 0x20:
            accumulator = words[k // 4]
        elif op == 0x54:
            accumulator &= k
        elif op == 0x05:
            pc += k
        elif op == 0x15:
            pc += jt if accumulator == k else jf
        elif op == 0x25:
            pc += jt if accumulator > k else jf
        elif op == 0x35:
            pc += jt if accumulator >= k else jf
        elif op == 0x45:
            pc += jt if accumulator & k else jf
        else:
            return k


def run(program: bytes, nr: int, arch: int, args: Sequence[int] = ()) -> int:
    return run_decoded(decode(program), seccomp_data(nr, arch, args))


def reachable(code: Sequence[tuple[int, int, int, int]]) -> set[int]:
    """The places that some path from the start gets to."""
    seen: set[int] = set()
    waiting = [0]
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        op, jt, jf, k = code[place]
        if op == 0x05:
            waiting.append(place + 1 + k)
        elif op in (0x15, 0x25, 0x35, 0x45):
            waiting += [place + 1 + jt, place + 1 + jf]
        elif op != 0x06:
            waiting.append(place + 1)
    return seen
