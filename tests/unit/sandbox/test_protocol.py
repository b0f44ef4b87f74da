"""The wire between executor, fork server and init."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import Protocol
from stockade.sandbox import protocol

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(st.binary(max_size=300))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    try:
        message = protocol.decode(data)
    except Protocol:
        return
    assert message["v"] == protocol.VERSION
    assert isinstance(message["is"], str)


@given(JSON)
def test_json_that_is_no_message_is_refused(value: object) -> None:
    import json

    try:
        protocol.decode(json.dumps(value).encode())
    except Protocol:
        return
    assert isinstance(value, dict)
    assert value["v"] == 1


def test_nesting_that_would_exhaust_the_stack_is_refused() -> None:
    with pytest.raises(Protocol):
        protocol.decode(b"[" * 8000)


def test_a_message_over_the_limit_is_refused() -> None:
    with pytest.raises(Protocol, match="at most 8192"):
        protocol.decode(b" " * 8193)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_a_body_comes_back_whole_and_its_head_is_the_step(body: dict[str, str]) -> None:
    descriptor = protocol.write_body(body)
    try:
        assert protocol.read_step(descriptor) == "clone"
        protocol.mark_step(descriptor, "mounts")
        assert protocol.read_step(descriptor) == "mounts"
        assert protocol.read_body(descriptor) == body
    finally:
        os.close(descriptor)


def test_a_body_over_the_limit_is_refused() -> None:
    with pytest.raises(Protocol, match="at most"):
        protocol.write_body({"argv": "x" * protocol.MAX_BODY})


def test_descriptors_of_a_cut_datagram_are_closed() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = len(os.listdir("/proc/self/fd"))
    with ours, theirs:
        protocol.send(theirs, b"x" * (protocol.MAX_MESSAGE + 2), (0, 1, 2))
        with pytest.raises(Protocol, match="cut"):
            protocol.receive(ours)
        assert len(os.listdir("/proc/self/fd")) == before
