"""A settled job with its output, as `Executor.run` gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stockade.bank.account import Account
from stockade.jobs.records import JobRecord, Usage
from stockade.launcher.outcome import Exited, Outcome


@dataclass(frozen=True, slots=True)
class Result:
    """A job that has settled, with what it wrote (bytes, up to the policy's cap)."""

    record: JobRecord
    stdout: bytes
    stderr: bytes

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        assert self.record.outcome is not None
        return self.record.outcome

    @property
    def exit_code(self) -> int | None:
        """The command's own exit code; None where a signal ended it or nobody saw its end."""
        return self.outcome.exit_code

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended the command, if one did."""
        return self.outcome.signal

    @property
    def ok(self) -> bool:
        """True where the command ended by itself with exit code 0."""
        return isinstance(self.outcome, Exited) and self.outcome.exit_code == 0

    @property
    def usage(self) -> Usage:
        return self.record.usage

    @property
    def isolation(self) -> Mapping[str, str]:
        """Each layer and each limit, with the mechanism that was in force."""
        return self.record.isolation


def whole_output(account: Account) -> tuple[bytes, bytes]:
    texts = []
    for name in account.streams:
        reader, data = account.reader(name), bytearray()
        while True:
            page = reader.read_bytes(len(data) + reader.stream.extent().start)
            data += page.data
            if not page.data:
                break
        texts.append(bytes(data))
    return texts[0], texts[1] if len(texts) > 1 else b""
