"""Model APIs on loopback that ask for one tool call and keep what they are told: the other half of a coding agent's conversation."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any


class MockModel(http.server.ThreadingHTTPServer):
    """Answers each conversation first with a call of `tool`, then with a word; `results` are what the calls gave."""

    daemon_threads = True

    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Api)
        self.tool = tool
        self.arguments = arguments
        self.results: list[Any] = []
        self.offered: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def mock_model(tool: str, arguments: dict[str, Any]) -> Iterator[MockModel]:
    """Runs one on a thread until the end."""
    model = MockModel(tool, arguments)
    thread = threading.Thread(target=model.serve_forever, name="mock-model")
    thread.start()
    try:
        yield model
    finally:
        model.shutdown()
        model.server_close()
        thread.join()


class _Api(http.server.BaseHTTPRequestHandler):
    """`POST /v1/messages`, as server-sent events where they are asked for, and `POST /v1/responses`."""

    server: MockModel

    def log_message(self, *args: object) -> None:
        """Says nothing."""

    def do_HEAD(self) -> None:
        self._send(b"", "text/plain")

    def do_GET(self) -> None:
        self._send(b"{}", "application/json")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        if self.path.startswith("/v1/responses"):
            self._respond(request)
            return
        if not self.path.startswith("/v1/messages") or "count_tokens" in self.path:
            self._send(b'{"input_tokens": 1}', "application/json")
            return
        blocks = self._blocks(request)
        stop = "tool_use" if blocks[0]["type"] == "tool_use" else "end_turn"
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": request.get("model"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        if not request.get("stream"):
            self._send(json.dumps({**message, "content": blocks, "stop_reason": stop}).encode(), "application/json")
            return
        events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
        for index, block in enumerate(blocks):
            empty = {**block, "input": {}} if block["type"] == "tool_use" else {"type": "text", "text": ""}
            delta = (
                {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
                if block["type"] == "tool_use"
                else {"type": "text_delta", "text": block["text"]}
            )
            events += [
                {"type": "content_block_start", "index": index, "content_block": empty},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            ]
        events += [
            {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]
        self._stream(events)

    def _respond(self, request: dict[str, Any]) -> None:
        model = self.server
        if results := [part for part in request["input"] if part.get("type") == "function_call_output"]:
            model.results += results
            item = {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "done"}]}
        else:
            namespace, _, name = model.tool.rpartition("__")
            call = {"name": name, "namespace": namespace, "arguments": json.dumps(model.arguments)}
            item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", **call}
        usage = {"input_tokens": 1, "input_tokens_details": None, "output_tokens": 1, "output_tokens_details": None, "total_tokens": 2}
        self._stream(
            [
                {"type": "response.created", "response": {"id": "resp_1"}},
                {"type": "response.output_item.done", "output_index": 0, "item": item},
                {"type": "response.completed", "response": {"id": "resp_1", "usage": usage}},
            ]
        )

    def _stream(self, events: list[dict[str, Any]]) -> None:
        self._send("".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode(), "text/event-stream")

    def _blocks(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        model = self.server
        names = [tool.get("name", "") for tool in request.get("tools", [])]
        if model.tool not in names:
            return [{"type": "text", "text": "nothing to do"}]
        model.offered = names
        content = request["messages"][-1]["content"]
        results = (
            [part for part in content if isinstance(part, dict) and part.get("type") == "tool_result"] if isinstance(content, list) else []
        )
        if results:
            model.results += results
            return [{"type": "text", "text": "done"}]
        return [{"type": "tool_use", "id": "toolu_1", "name": model.tool, "input": model.arguments}]

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


__all__ = ["MockModel", "mock_model"]
