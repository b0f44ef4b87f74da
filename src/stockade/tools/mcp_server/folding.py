"""What a line of output looks like once a terminal has acted on it: for a reader who has no terminal.

Escape sequences go, a progress bar is what was drawn last, characters that were struck out are gone. The bank keeps the bytes.
"""

from __future__ import annotations

import re
from typing import Final

# ECMA-48: control sequences (CSI), strings (OSC, DCS, SOS, PM, APC), and the short ones. What was begun and not ended goes too.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*(?:\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# C0 without tab, DEL and C1; backspace and carriage return have been acted on.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def fold(line: str) -> str:
    """One line without its end, as a reader should see it: never longer than it was, and without any control but the tab."""
    if _CONTROLS.search(line) is None:
        return line
    text = _ESCAPES.sub("", line)
    if "\r" in text:
        # Each return begins the line anew; what was drawn last is what one would look at.
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    if "\b" in text:
        text = _struck_out(text)
    return _CONTROLS.sub("", text)


def _struck_out(text: str) -> str:
    kept: list[str] = []
    for character in text:
        if character != "\b":
            kept.append(character)
        elif kept:
            kept.pop()
    return "".join(kept)
