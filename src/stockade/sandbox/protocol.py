"""Messages between executor, fork server and init: one JSON object a datagram of a SOCK_SEQPACKET socket (unix(7)).

Trust runs one way. What init says is read by `decode`, which checks length, version and shape; the receiver checks the values.
A launch request can be larger than a datagram (argv may have 2 MiB), so its body travels in a memfd (memfd_create(2)).
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

from stockade.errors import Protocol

VERSION = 1
MAX_MESSAGE = 8192  # bytes of one datagram
MAX_BODY = 8 << 20  # bytes of a launch request
MAX_DESCRIPTORS = 8
_HEAD = 64

# Lines of init's report; each is {"v": 1, "is": <kind>, ...}.
FAILED = "failed"  # {"step", "call", "path", "errno"}: it could not be done, init goes away
PLACES = "places"  # {"paths"}, with a descriptor of each: the tmpfs mounts that the job has of its own
TERMINAL = "terminal"  # with the master of the job's pseudoterminal; before READY, where the request asks for one
READY = "ready"  # the sandbox stands and waits for its command
STARTED = "started"  # the program has been executed
ENDED = "ended"  # {"code"} or {"signal"}: the command's wait status
SIGNALLED = "signalled"  # {"signal", "fatal"}: a relayed signal has been sent to every process; whether it must end the command


class DescriptorsLost(Protocol):
    """A datagram came without the descriptors that were sent with it: no number was free for them (EMFILE)."""

    def __init__(self, data: bytes) -> None:
        super().__init__("descriptors were cut")
        self.data = data


def encode(kind: str, **fields: Any) -> bytes:
    """One message as bytes."""
    return json.dumps({"v": VERSION, "is": kind, **fields}, separators=(",", ":")).encode()


def decode(data: bytes) -> dict[str, Any]:
    """The message in a datagram.

    Raises: Protocol, where it is not a JSON object of our version with a kind, or too large.
    """
    if len(data) > MAX_MESSAGE:
        raise Protocol(f"message of {len(data)} bytes, at most {MAX_MESSAGE} are allowed")
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Protocol(f"message is not JSON: {str(error)[:80]}") from None
    if isinstance(message, dict):
        version, kind = message.get("v"), message.get("is")
        if type(version) is int and version == VERSION and isinstance(kind, str):
            return message
    raise Protocol("message is not an object of version 1 with a kind")


def write_body(body: dict[str, Any]) -> int:
    """A memfd that holds `body` as JSON behind a head of 64 bytes for the step under way; the caller closes it."""
    descriptor = os.memfd_create("stockade-request", os.MFD_CLOEXEC)
    try:
        fill_body(descriptor, body)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def fill_body(descriptor: int, body: dict[str, Any]) -> None:
    """Writes `body` into an empty memfd as `write_body` does. Raises: Protocol, where it is too large."""
    data = bytes(_HEAD) + json.dumps(body, separators=(",", ":")).encode()
    if len(data) > MAX_BODY:
        raise Protocol(f"request of {len(data)} bytes, at most {MAX_BODY} are allowed")
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_body(descriptor: int) -> dict[str, Any]:
    """The body that `write_body` left in a memfd."""
    size = os.fstat(descriptor).st_size
    if size > MAX_BODY:
        raise Protocol(f"request of {size} bytes, at most {MAX_BODY} are allowed")
    data = os.pread(descriptor, size, _HEAD)
    if len(data) != size - _HEAD:
        raise Protocol("request is shorter than its file says")
    body = json.loads(data)
    if not isinstance(body, dict):
        raise Protocol("request is not an object")
    return body


def mark_step(descriptor: int, name: str) -> None:
    """Says in the head of a request which step init is at; costs no wake-up of the executor, and outlives init."""
    os.pwrite(descriptor, name.encode().ljust(_HEAD, b"\0"), 0)


def read_step(descriptor: int) -> str:
    """The step that `mark_step` left; "clone" where there is none."""
    return os.pread(descriptor, _HEAD, 0).rstrip(b"\0").decode("ascii", "replace") or "clone"


def send(channel: socket.socket, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
    """Sends one datagram with descriptors (SCM_RIGHTS); the caller keeps its own copies."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    channel.sendmsg([message], ancillary, socket.MSG_NOSIGNAL)


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """One datagram and the descriptors that came with it (close-on-exec); (b"", []) where the peer is gone.

    Raises: BlockingIOError, where the channel is non-blocking and empty; Protocol, where the datagram was cut, DescriptorsLost, where
    only what came with it was.
    """
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
    data, ancillary, flags, _ = channel.recvmsg(MAX_MESSAGE + 1, space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for descriptor in descriptors:
            os.close(descriptor)
        if flags & socket.MSG_TRUNC:
            raise Protocol("datagram was cut")
        raise DescriptorsLost(data)
    return data, list(descriptors)
