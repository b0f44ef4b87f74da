"""Whose conversation a tool call belongs to: the caller's word, then the host's, then a name that stays the host's own (1A.10)."""

from __future__ import annotations

import itertools
import re
from typing import Final

from stockade.tools.schemas import CallContext

# Frameworks make these up anew for each call where they know of no session; two calls of one conversation differ.
_PLACEHOLDER: Final = re.compile(r"fallback-[0-9]+")

_numbers: Final = itertools.count(1)


def declared_session(session_id: str | None) -> str | None:
    """The id without blanks around it, where it says anything: None for blank ones and for placeholders."""
    name = (session_id or "").strip()
    return None if not name or _PLACEHOLDER.fullmatch(name) else name


class HostSession:
    """The session of a host's calls; `session_id` is the host's own word and may be changed between calls."""

    def __init__(self, session_id: str | None = None) -> None:
        self.session_id = session_id
        self.default: Final = f"checklist-default-{next(_numbers)}"

    def resolve(self, context: CallContext | None = None) -> str:
        """The session of a call."""
        said = context.session_id if context is not None else None
        return declared_session(said) or declared_session(self.session_id) or self.default
