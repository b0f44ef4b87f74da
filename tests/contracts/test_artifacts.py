"""Banked payloads and the tool that reads them (1A.11; NA-01 to NA-15)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stockade import Executor
from stockade.bank.artifacts import ArtifactStore
from stockade.bank.bank import Bank
from stockade.errors import InvalidRequest
from stockade.tools.commands import BackgroundCommands
from support.agents import artifact_pages, digest, host, run

MEBIBYTE = "".join(f"{number:07x}\n" for number in range(131_072))

# Reads one artifact of the bank at argv[1], as another process would.
READER = """
import sys
from stockade.bank.artifacts import ArtifactStore
from stockade.bank.bank import Bank
page = ArtifactStore(Bank(sys.argv[1])).read_artifact(sys.argv[2])
sys.stdout.write(page.content)
"""


async def retrieve(commands: BackgroundCommands, artifact_id: str, **arguments: Any) -> dict[str, Any]:
    return await commands.tools.call("retrieve_context", {"artifactId": artifact_id, **arguments})


@pytest.fixture
async def bare(background_executor: Executor) -> BackgroundCommands:
    """A host with nothing on offer."""
    return BackgroundCommands(background_executor)


@pytest.mark.case("NA-01")
async def test_the_tool_is_on_offer_from_the_first_artifact_on(bare: BackgroundCommands) -> None:
    assert "retrieve_context" not in bare.tools
    await bare.bank_artifact("a report", kind="worker-report")
    assert bare.tools.names == ("retrieve_context",)
    await bare.bank_artifact("another", kind="worker-report")
    assert bare.tools.names == ("retrieve_context",)


@pytest.mark.case("NA-01")
async def test_a_command_that_has_settled_puts_the_tool_on_offer(commands: BackgroundCommands) -> None:
    assert "retrieve_context" not in commands.tools
    await run(commands, ["/usr/bin/true"])
    assert commands.tools.names[-1] == "retrieve_context"


@pytest.mark.case("NA-02")
async def test_the_store_is_the_same_each_time_and_offers_the_tool(bare: BackgroundCommands) -> None:
    store = bare.get_artifact_store()
    assert bare.get_artifact_store() is store
    assert bare.tools.names == ("retrieve_context",)


@pytest.mark.case("NA-03")
async def test_a_store_that_the_caller_brings_is_used_and_stays_open(
    background_executor: Executor, tmp_path: Path, workspace: Path
) -> None:
    bank = await background_executor.call(Bank, tmp_path / "bank")
    store = await background_executor.call(ArtifactStore, bank)
    commands = BackgroundCommands(background_executor, artifact_store=store)
    assert commands.get_artifact_store() is store
    reference = await commands.bank_artifact("in the caller's store", kind="other")
    assert await background_executor.call(background_executor.artifacts.read_artifact, reference.artifact_id) is None
    assert (await retrieve(commands, reference.artifact_id))["content"] == "in the caller's store"
    await commands.dispose()
    page = await background_executor.call(store.read_artifact, reference.artifact_id)
    assert page is not None
    assert page.content == "in the caller's store"
    await background_executor.call(store.close)
    await background_executor.call(bank.close)


@pytest.mark.case("NA-04")
async def test_a_large_payload_is_previewed_and_kept_whole(bare: BackgroundCommands) -> None:
    reference = await bare.bank_artifact(MEBIBYTE, kind="stage-output", label="a mebibyte")
    assert (reference.kind, reference.label, reference.size_bytes) == ("stage-output", "a mebibyte", 1_048_576)
    assert reference.preview == MEBIBYTE[:1_000] + "…"
    hint = reference.read_back_hint
    call = f'retrieve_context({{"artifactId": "{reference.artifact_id}", "offset": 0, "limit": 50000}})'
    for part in (call, "1048576 bytes", "nothing was discarded", "hasMore"):
        assert part in hint
    page = await bare.read_artifact(reference.artifact_id)
    assert page is not None
    assert digest(page.content) == digest(MEBIBYTE)


@pytest.mark.case("NA-05")
@pytest.mark.parametrize(("chars", "length"), [(50, 51), (999_999, 4_001), (4_000, 4_001), (0, 1), (-1, 1)])
async def test_the_preview_is_clamped(bare: BackgroundCommands, chars: int, length: int) -> None:
    reference = await bare.bank_artifact("x" * 5_000, kind="other", preview_chars=chars)
    assert len(reference.preview) == length


@pytest.mark.case("NA-06")
async def test_a_short_payload_is_its_own_preview(bare: BackgroundCommands) -> None:
    assert (await bare.bank_artifact("short", kind="other")).preview == "short"
    assert (await bare.bank_artifact("x" * 50, kind="other", preview_chars=50)).preview == "x" * 50


@pytest.mark.case("NA-07")
async def test_sizes_are_bytes(bare: BackgroundCommands) -> None:
    assert (await bare.bank_artifact("é😀", kind="other")).size_bytes == 6


@pytest.mark.case("NA-08")
async def test_a_blank_label_becomes_the_kind(bare: BackgroundCommands) -> None:
    assert (await bare.bank_artifact("x", kind="worker-report", label="  ")).label == "worker-report"
    with pytest.raises(InvalidRequest, match="worker-report, command-output, stage-output, other"):
        await bare.bank_artifact("x", kind="nonsense")  # type: ignore[arg-type]


@pytest.mark.case("NA-09")
async def test_a_walk_of_windows_is_exact(bare: BackgroundCommands) -> None:
    reference = await bare.bank_artifact(MEBIBYTE, kind="other")
    walked = await artifact_pages(bare, reference.artifact_id, limit=100_000)
    assert len(walked) == 11
    assert "".join(walked) == MEBIBYTE


@pytest.mark.case("NA-10")
async def test_windows_are_where_they_are_asked_for(bare: BackgroundCommands) -> None:
    reference = await bare.bank_artifact(MEBIBYTE, kind="other")
    assert await retrieve(bare, reference.artifact_id, offset=1_000, limit=250) == {
        "artifactId": reference.artifact_id,
        "content": MEBIBYTE[1_000:1_250],
        "totalSize": 1_048_576,
        "hasMore": True,
        "offset": 1_000,
        "limit": 250,
    }
    tail = await retrieve(bare, reference.artifact_id, offset=1_048_000, limit=1_000)
    assert (tail["content"], tail["hasMore"]) == (MEBIBYTE[1_048_000:], False)
    huge = await retrieve(bare, reference.artifact_id, limit=10**9)
    assert (huge["limit"], len(huge["content"])) == (200_000, 200_000)
    past = await retrieve(bare, reference.artifact_id, offset=2_000_000)
    assert (past["content"], past["hasMore"]) == ("", False)


@pytest.mark.case("NA-11")
async def test_json_comes_back_as_it_was(bare: BackgroundCommands) -> None:
    value = {"text": "é😀\n", "numbers": [1, 2.5, None], "nested": {"a": [True]}}
    reference = await bare.bank_artifact(json.dumps(value), kind="other", content_type="json")
    assert json.loads((await retrieve(bare, reference.artifact_id))["content"]) == value


@pytest.mark.case("NA-12")
async def test_the_hosts_windows_have_no_limit_unless_it_is_given(bare: BackgroundCommands) -> None:
    reference = await bare.bank_artifact(MEBIBYTE, kind="other")
    page = await bare.read_artifact(reference.artifact_id, 500_000)
    assert page is not None
    assert page.content == MEBIBYTE[500_000:]
    page = await bare.read_artifact(reference.artifact_id, 8, 8)
    assert page is not None
    assert (page.content, page.total_chars, page.has_more) == ("0000001\n", 1_048_576, True)


@pytest.mark.case("NA-13")
async def test_an_unknown_artifact_is_no_content(bare: BackgroundCommands, background_executor: Executor) -> None:
    bare.get_artifact_store()
    assert await bare.read_artifact("a" + "0" * 24) is None
    assert await retrieve(bare, "nope") == {"error": "Artifact not found or has expired", "artifactId": "nope"}
    reference = await bare.bank_artifact("x", kind="other")
    await background_executor.call(bare.get_artifact_store().delete, reference.artifact_id)
    assert (await retrieve(bare, reference.artifact_id))["error"] == "Artifact not found or has expired"


@pytest.mark.case("NA-14")
async def test_an_id_is_never_a_path(bare: BackgroundCommands) -> None:
    real = (await bare.bank_artifact("real", kind="other")).artifact_id
    for artifact_id in (f"../artifacts/{real}", "..", ".", "sub/dir", "...", "", "-x", "a" * 129, f"{real}\0", f"{real}.meta.json"):
        assert await bare.read_artifact(artifact_id) is None
        assert await retrieve(bare, artifact_id) == {"error": "Artifact not found or has expired", "artifactId": artifact_id}
    assert (await retrieve(bare, real))["content"] == "real"


@pytest.mark.case("NA-15")
async def test_another_process_reads_it(bare: BackgroundCommands, state: Path) -> None:
    reference = await bare.bank_artifact("for all processes", kind="other")
    command = [sys.executable, "-c", READER, state / "bank", reference.artifact_id]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "for all processes"


async def test_a_search_finds_places(bare: BackgroundCommands) -> None:
    text = "".join(f"line {number}: {'ERROR' if number % 100 == 99 else 'ok'}\n" for number in range(10_000))
    reference = await bare.bank_artifact(text, kind="other")
    found = await retrieve(bare, reference.artifact_id, search="error")
    assert found.keys() == {"artifactId", "matches", "totalMatches", "truncated", "nextSearchOffset"}
    assert (len(found["matches"]), found["totalMatches"], found["truncated"]) == (50, 100, True)
    first = found["matches"][0]
    at = text.index("ERROR")
    assert first == {"offset": at, "line": 100, "snippet": text[at - 120 : at + 125], "snippetOffset": at - 120}
    rest = await retrieve(bare, reference.artifact_id, search="error", offset=found["nextSearchOffset"])
    assert (len(rest["matches"]), rest["truncated"], "nextSearchOffset" in rest) == (50, False, False)
    assert text[rest["matches"][-1]["offset"] :].startswith("ERROR")
    for pattern in ("", "x" * 201):
        refused = await retrieve(bare, reference.artifact_id, search=pattern)
        assert refused["isError"] is True
        assert "search" in refused["error"]
        assert "200" in refused["error"] or "at least 1" in refused["error"]


async def test_a_session_lists_its_own_hosts_artifacts_alone(background_executor: Executor, workspace: Path) -> None:
    async with host(background_executor, workspace) as ours, host(background_executor, workspace) as theirs:
        await theirs.bank_artifact("theirs", kind="other", session_id="one")
        mine = await ours.bank_artifact("mine", kind="other", session_id="one")
        await ours.bank_artifact("elsewhere", kind="other", session_id="two")
        status = await run(ours, ["/bin/sh", "-c", "echo x"], session_id="one")
        assert status.stdout is not None
        assert status.stderr is not None
        listed = await ours.tools.call("retrieve_context", {"sessionId": "one"})
        ids = {each["artifactId"] for each in listed["artifacts"]}
        assert ids == {mine.artifact_id, status.stdout.artifact_id, status.stderr.artifact_id}
        assert (listed["sessionId"], listed["total"]) == ("one", 3)
        neither = await ours.tools.call("retrieve_context", {})
        assert "artifactId" in neither["error"]
        assert "sessionId" in neither["error"]
