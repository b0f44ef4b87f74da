"""The pseudoterminal of a job, out of the job's own devpts instance: init opens it, the executor gets the master.

A terminal that is opened with a plain open(2) becomes the controlling one of a session leader that has none. Init is such a leader
and must not get it, so it opens with O_NOCTTY; the command is one too and must, so it opens the slave by its name (tty(4)).

Man pages: pty(7), devpts in mount(8), ioctl_tty(2), TIOCSWINSZ(2const).
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios

from stockade.sandbox.syscalls import KernelError

_DIRECTORY = "/dev/pts"
_FLAGS = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
# ioctl_tty(2); the termios module of Python 3.11 lacks them.
_TIOCSPTLCK = 0x40045431
_TIOCGPTN = 0x80045430
PTMX = (5, 2)  # major and minor of every master's device (Documentation/admin-guide/devices.txt)


class Pseudoterminal:
    """Both ends; `path` is the slave's name inside. The slave is kept open so that the master never reports a hang-up while init lives."""

    def __init__(self, master: int, slave: int, path: str) -> None:
        self.master = master
        self.slave = slave
        self.path = path


def open_pseudoterminal(rows: int, columns: int, owner: tuple[int, int] | None) -> Pseudoterminal:
    """A new pseudoterminal of this size; its slave belongs to `owner` (uid, gid), else to whoever calls.

    Raises: KernelError.
    """
    call = "open"
    path = f"{_DIRECTORY}/ptmx"
    try:
        master = os.open(path, _FLAGS)
        call = "ioctl(TIOCSPTLCK)"
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        call = "ioctl(TIOCGPTN)"
        path = f"{_DIRECTORY}/{struct.unpack('i', fcntl.ioctl(master, _TIOCGPTN, bytes(4)))[0]}"
        call = "ioctl(TIOCSWINSZ)"
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        call = "open"
        slave = os.open(path, _FLAGS)
        call = "fchown"
        if owner is not None:
            os.fchown(slave, *owner)
    except OSError as error:
        raise KernelError(call, path, error.errno or 0) from None
    return Pseudoterminal(master, slave, path)
