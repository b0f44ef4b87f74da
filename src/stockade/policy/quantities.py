"""Sizes, durations, CPU shares and counts as people write them: text without its unit is refused, never guessed.

Everything here raises `QuantityError` and nothing else, whatever it is given; its text says what would be accepted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)

_BYTE_UNITS: dict[str, int] = {unit: 1 << 10 * power for power, unit in enumerate("KMGTPE", start=1)}
_SECOND_UNITS = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_WRITTEN = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,30})?) ?([A-Za-z]*)\Z")
_PLAIN = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,30})?\Z")

_SIZE = "give bytes as a whole number, such as 536870912, or text with a unit, such as '512M' or '512MiB'"
_DURATION = "give seconds as a number, such as 90 or 0.25, or text with a unit, such as '90s', '5m' or '250ms'"
_CPUS = "give a number of CPUs, such as 0.5 or 2"
_COUNT = "give a whole number"


class QuantityError(ValueError):
    """The value is no quantity of the wanted kind; the text says which forms are."""


def shown(value: object, length: int = 80) -> str:
    """The value as it is named in an error: bounded, and safe for any object."""
    if isinstance(value, str):
        return repr(value) if len(value) <= length else repr(value[:length]) + "…"
    if isinstance(value, bool | float) or value is None:
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
    return f"a {type(value).__name__}"


def parse_bytes(value: object) -> int:
    """A size in bytes from an int, or from text such as "512M", "1.5GiB" or "100B"; K, M, G … are powers of 1024.

    Raises: QuantityError.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float):
        raise QuantityError(f"{value!r} is not a size: it is a fraction of a byte or lost precision; {_SIZE}")
    if not isinstance(value, str):
        raise QuantityError(f"{shown(value)} is not a size: {_SIZE}")
    match = _WRITTEN.match(value)
    if match is None:
        raise QuantityError(f"{shown(value)} is not a size: {_SIZE}")
    number, unit = match.groups()
    if not unit:
        raise QuantityError(
            f"{shown(value)} has no unit: write '{number}M' for mebibytes, '{number}B' for bytes, or the number {number} without quotes"
        )
    count = Fraction(number) * _byte_unit(unit, number)
    if count.denominator != 1:
        raise QuantityError(f"{shown(value)} is not a whole number of bytes: {_SIZE}")
    return int(count)


def _byte_unit(unit: str, number: str) -> int:
    name = unit.upper()
    if name == "B":
        return 1
    letter, rest = name[0], name[1:]
    if letter in _BYTE_UNITS and rest in ("", "IB"):
        return _BYTE_UNITS[letter]
    if letter in _BYTE_UNITS and rest == "B":
        raise QuantityError(f"unit {unit!r} can mean 1000 or 1024: write '{number}{letter}' or '{number}{letter}iB' (1024)")
    raise QuantityError(f"unknown unit {shown(unit)}: {_SIZE}")


def format_bytes(count: int) -> str:
    """The shortest exact text that `parse_bytes` reads back, such as "512M" or "100B"."""
    for unit, scale in reversed(_BYTE_UNITS.items()):
        if count >= scale and count % scale == 0:
            return f"{count // scale}{unit}"
    return f"{count}B"


def parse_seconds(value: object) -> float:
    """A duration in seconds from a finite number, or from text such as "90s", "5m", "1.5h" or "250ms".

    Raises: QuantityError.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, _DURATION)
    if not isinstance(value, str):
        raise QuantityError(f"{shown(value)} is not a duration: {_DURATION}")
    match = _WRITTEN.match(value)
    if match is None:
        raise QuantityError(f"{shown(value)} is not a duration: {_DURATION}")
    number, unit = match.groups()
    if not unit:
        raise QuantityError(
            f"{shown(value)} has no unit: write '{number}s' for seconds, '{number}ms' for milliseconds, "
            f"or the number {number} without quotes"
        )
    if unit not in _SECOND_UNITS:
        raise QuantityError(f"unknown unit {shown(unit)}: {_DURATION}")
    return float(Fraction(number) * _SECOND_UNITS[unit])


def format_seconds(seconds: float) -> str:
    """The shortest exact text that `parse_seconds` reads back, such as "90s"; for 1 µs up."""
    text = repr(float(seconds)).removesuffix(".0")
    return f"{seconds:.30f}".rstrip("0").rstrip(".") + "s" if "e" in text else f"{text}s"


def parse_cpus(value: object) -> float:
    """A number of CPUs from a finite number or its plain text: 0.5 and "0.5" are half a CPU.

    Raises: QuantityError.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, _CPUS)
    if not isinstance(value, str):
        raise QuantityError(f"{shown(value)} is not a number of CPUs: {_CPUS}")
    if _PLAIN.match(value):
        return float(value)
    match = _WRITTEN.match(value)
    if match is None:
        raise QuantityError(f"{shown(value)} is not a number of CPUs: {_CPUS}")
    number, unit = match.groups()
    right = format_cpus(float(number) / 1000) if unit == "m" else number
    raise QuantityError(f"{shown(value)} has a unit and CPUs have none: write {right}")


def format_cpus(cpus: float) -> str:
    """The number without a needless fraction: "2", "0.5"."""
    return repr(float(cpus)).removesuffix(".0")


def parse_count(value: object) -> int:
    """A whole number from an int and from nothing else.

    Raises: QuantityError.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _PLAIN.match(value):
        raise QuantityError(f"{shown(value)} is text: {_COUNT} without quotes")
    raise QuantityError(f"{shown(value)} is not a whole number: {_COUNT}")


def format_count(count: int) -> str:
    """The number as text."""
    return shown(count)


def bounded(
    parse: Callable[[object], Number],
    show: Callable[[Number], str],
    low: Number,
    high: Number,
    *,
    optional: bool = False,
) -> Callable[[Any], Number | None]:
    """A check that reads a value with `parse` and holds it to `low … high`, both included.

    Where `optional`, None and the text "none" (files and command lines know no None) stand for no limit.
    """

    def check(value: Any) -> Number | None:
        if value is None or (isinstance(value, str) and value == "none"):
            if optional:
                return None
            raise QuantityError(f"cannot be unlimited: give {show(low)} to {show(high)}")
        number = parse(value)
        if not low <= number <= high:
            unlimited = ", or None for no limit" if optional else ""
            raise QuantityError(f"{shown(value)} is out of range: give {show(low)} to {show(high)}{unlimited}")
        return number

    return check


def _finite(value: float, accepted: str) -> float:
    # An int beyond the range of floats would raise OverflowError in float().
    if isinstance(value, int) and value.bit_length() > 256:
        raise QuantityError(f"{shown(value)} is out of range: {accepted}")
    number = float(value)
    if not math.isfinite(number):
        raise QuantityError(f"{value!r} is not a finite number: {accepted}")
    return number
