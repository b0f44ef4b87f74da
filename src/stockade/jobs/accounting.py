"""What one job has used, put together from those who counted: its cgroup, its streams, its own places and our clocks."""

from __future__ import annotations

from collections.abc import Mapping

from stockade.bank.account import Account
from stockade.jobs.records import Usage
from stockade.launcher.scratch import Filling
from stockade.sandbox import counters


def record_usage(
    counted: counters.Usage,
    *,
    wall: float,
    frozen: float,
    peak_sample: int | None,
    account: Account | None,
    filled: Mapping[str, Filling],
) -> Usage:
    """The usage that is recorded; what nobody could count is None."""
    return Usage(
        wall=wall,
        frozen=frozen,
        user=counted.user_cpu,
        system=counted.system_cpu,
        throttled=counted.throttled,
        peak_memory=counted.peak_memory,
        peak_sampled=peak_sample,
        peak_processes=counted.peak_processes,
        refused_forks=counted.refused_forks,
        oom_kills=counted.oom_kills,
        io_read=counted.read_bytes,
        io_written=counted.written_bytes,
        output_bytes=None if account is None else account.written(),
        output_lines=None if account is None else account.line_ends(),
        tmpfs_bytes={place: filling.used_bytes for place, filling in filled.items()} or None,
        tmpfs_inodes={place: filling.used_inodes for place, filling in filled.items()} or None,
        pressure=None if counted.pressure is None else dict(counted.pressure),
    )
