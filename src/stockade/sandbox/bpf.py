"""Assembles seccomp programs in classic BPF: comparisons of arguments, and the search over syscall numbers.

A program is built from its end to its start, so that every jump goes to code that is already placed and its distance is
known. seccomp(2), `struct seccomp_data` in linux/seccomp.h, Documentation/networking/filter.rst of the kernel.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field

MAX_INSTRUCTIONS = 4096  # BPF_MAXINSNS
WORD = 0xFFFF_FFFF
NR_OFFSET = 0
ARCH_OFFSET = 4
MAX_ARGUMENT = 5

_INSTRUCTION = struct.Struct("<HBBI")  # struct sock_filter: code, jt, jf, k
_FARTHEST = 255  # jt and jf are bytes


class Op(enum.IntEnum):
    """The opcodes that are emitted."""

    LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
    AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
    JUMP = 0x05  # BPF_JMP | BPF_JA
    JEQ = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
    JGT = 0x25
    JGE = 0x35
    JSET = 0x45
    RETURN = 0x06  # BPF_RET | BPF_K


class Compare(enum.StrEnum):
    """How an argument is compared, by its OCI name; all comparisons are unsigned."""

    EQ = "SCMP_CMP_EQ"
    NE = "SCMP_CMP_NE"
    LT = "SCMP_CMP_LT"
    LE = "SCMP_CMP_LE"
    GT = "SCMP_CMP_GT"
    GE = "SCMP_CMP_GE"
    MASKED_EQ = "SCMP_CMP_MASKED_EQ"


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison; for MASKED_EQ `value` is the mask and `masked` what must be left of the argument under it.

    `low_word`: only the low 32 bits count, because the kernel's own parameter has no more and the rest is thrown away.
    """

    index: int
    compare: Compare
    value: int
    masked: int = 0
    low_word: bool = False


# An entry point: the place of an instruction, counted from the end of the program.
Label = int


@dataclass(frozen=True, slots=True)
class Return:
    """The end of the program with this value; the instruction is put where a jump can reach it."""

    value: int


Target = Label | Return


@dataclass(slots=True)
class Assembler:
    """Collects instructions from the last to the first."""

    _reversed: list[tuple[int, int, int, int]] = field(default_factory=list)
    _returns: dict[int, Label] = field(default_factory=dict)

    def branch(self, op: Op, operand: int, then: Target, otherwise: Target) -> Label:
        """Compares the accumulator with `operand`."""
        # What is put in for `otherwise` moves `then` one step away; hence the slack of one.
        near_then = self._near(then, _FARTHEST - 1)
        near_otherwise = self._near(otherwise, _FARTHEST)
        return self._emit(op, operand, self._distance(near_then), self._distance(near_otherwise))

    def load(self, offset: int, following: Target) -> Label:
        """Loads a word of `struct seccomp_data` and goes on at `following`."""
        self._near(following, 0)
        return self._emit(Op.LOAD, offset)

    def mask(self, mask: int, following: Target) -> Label:
        """Keeps the bits of `mask` in the accumulator and goes on at `following`."""
        self._near(following, 0)
        return self._emit(Op.AND, mask)

    def condition(self, wanted: Condition, then: Target, otherwise: Target) -> Target:
        """Compares one argument."""
        match wanted.compare:
            case Compare.EQ:
                return self._equal(wanted, WORD | WORD << 32, wanted.value, then, otherwise)
            case Compare.NE:
                return self._equal(wanted, WORD | WORD << 32, wanted.value, otherwise, then)
            case Compare.MASKED_EQ:
                return self._equal(wanted, wanted.value, wanted.masked, then, otherwise)
            case Compare.GT:
                return self._greater(wanted, Op.JGT, then, otherwise)
            case Compare.GE:
                return self._greater(wanted, Op.JGE, then, otherwise)
            case Compare.LE:
                return self._greater(wanted, Op.JGT, otherwise, then)
            case Compare.LT:
                return self._greater(wanted, Op.JGE, otherwise, then)

    def search(self, ranges: list[tuple[int, Target]]) -> Target:
        """A balanced tree over the accumulator; `ranges` are (first number, entry) in ascending order."""
        if len(ranges) == 1:
            return ranges[0][1]
        middle = len(ranges) // 2
        upper = self.search(ranges[middle:])
        lower = self.search(ranges[:middle])
        return self.branch(Op.JGE, ranges[middle][0], upper, lower)

    def program(self) -> bytes:
        """The instructions as the kernel takes them: an array of `struct sock_filter`."""
        return b"".join(_INSTRUCTION.pack(*instruction) for instruction in reversed(self._reversed))

    def __len__(self) -> int:
        return len(self._reversed)

    def _equal(self, wanted: Condition, mask: int, value: int, then: Target, otherwise: Target) -> Target:
        """`argument & mask == value`, over both words or the low one."""
        entry = then
        if not wanted.low_word and mask >> 32:
            entry = self._word_equal(_high(wanted.index), mask >> 32, value >> 32, entry, otherwise)
        if mask & WORD:
            entry = self._word_equal(_low(wanted.index), mask & WORD, value & WORD, entry, otherwise)
        return entry

    def _word_equal(self, offset: int, mask: int, value: int, then: Target, otherwise: Target) -> Target:
        entry = self.branch(Op.JEQ, value, then, otherwise)
        if mask != WORD:
            entry = self.mask(mask, entry)
        return self.load(offset, entry)

    def _greater(self, wanted: Condition, low_op: Op, then: Target, otherwise: Target) -> Target:
        """`argument > value`, or `>=` where `low_op` says so; the high words decide unless they are equal."""
        entry = self.branch(low_op, wanted.value & WORD, then, otherwise)
        entry = self.load(_low(wanted.index), entry)
        if wanted.low_word:
            return entry
        entry = self.branch(Op.JEQ, wanted.value >> 32, entry, otherwise)
        entry = self.branch(Op.JGT, wanted.value >> 32, then, entry)
        return self.load(_high(wanted.index), entry)

    def _emit(self, op: Op, operand: int, then: int = 0, otherwise: int = 0) -> Label:
        self._reversed.append((op, then, otherwise, operand))
        return len(self._reversed) - 1

    def _distance(self, label: Label) -> int:
        """How many instructions lie between the next one to be emitted and `label`."""
        return len(self._reversed) - 1 - label

    def _near(self, target: Target, limit: int) -> Label:
        """An entry at most `limit` away that comes to the same as `target`."""
        if isinstance(target, Return):
            label = self._returns.get(target.value)
            if label is None or self._distance(label) > limit:
                label = self._returns[target.value] = self._emit(Op.RETURN, target.value)
            return label
        distance = self._distance(target)
        return target if distance <= limit else self._emit(Op.JUMP, distance)


def _low(index: int) -> int:
    return 16 + 8 * index  # both architectures are little-endian


def _high(index: int) -> int:
    return 20 + 8 * index
