"""Artifacts are read back by their id, whole or by window, and go only when nothing needs them (1A.11, N-B1, U-22)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from stockade.bank.artifacts import ArtifactStore
from stockade.bank.bank import Bank
from stockade.bank.references import Reference
from stockade.bank.retention import Retention
from stockade.bank.search import SearchPage
from stockade.bank.streams import MIB, Overflow, SinkFailed
from stockade.bank.windows import Page
from stockade.errors import InvalidRequest, StateError


@pytest.fixture
def store(bank: Bank) -> Iterator[ArtifactStore]:
    opened = ArtifactStore(bank)
    yield opened
    opened.close()


def page_of(store: ArtifactStore, artifact_id: str, offset: int = 0, limit: int = 50_000) -> Page:
    page = store.retrieve_context(artifact_id, offset=offset, limit=limit)
    assert isinstance(page, Page)
    return page


@pytest.mark.case("NA-04")
def test_a_mebibyte_is_kept_whole_and_shown_by_its_head(store: ArtifactStore) -> None:
    payload = "".join(f"{number:015d}\n" for number in range(65_536))
    reference = store.bank_artifact(payload, kind="worker-report", label="report")
    assert reference.preview == payload[:1000] + "…"
    assert len(reference.preview) == 1001
    assert f'retrieve_context({{"artifactId": "{reference.artifact_id}", "offset": 0, "limit": 50000}})' in reference.read_back_hint
    assert "1048576 bytes, nothing was discarded" in reference.read_back_hint
    whole = store.read_artifact(reference.artifact_id)
    assert whole is not None
    assert sha256(whole.content.encode()).digest() == sha256(payload.encode()).digest()


@pytest.mark.case("NA-05")
@pytest.mark.parametrize(("asked", "shown"), [(50, 51), (4_000, 4_001), (999_999, 4_001), (0, 1), (-3, 1)])
def test_a_preview_is_as_long_as_asked_within_its_range(store: ArtifactStore, asked: int, shown: int) -> None:
    assert len(store.bank_artifact("é" * 9_000, kind="other", preview_chars=asked).preview) == shown


@pytest.mark.case("NA-06")
def test_a_short_payload_is_shown_whole(store: ArtifactStore) -> None:
    assert store.bank_artifact("short", kind="other").preview == "short"
    assert store.bank_artifact("", kind="other").preview == ""
    assert store.bank_artifact("x" * 1000, kind="other").preview == "x" * 1000


@pytest.mark.case("NA-07")
def test_sizes_are_bytes_and_a_blank_label_is_the_kind(store: ArtifactStore) -> None:
    reference = store.bank_artifact("漢é", kind="stage-output", label="  ")
    assert (reference.size_bytes, reference.label) == (5, "stage-output")
    with pytest.raises(InvalidRequest, match="worker-report, command-output, stage-output, other"):
        store.bank_artifact("x", kind="secret")  # type: ignore[arg-type]


@pytest.mark.case("NA-09")
def test_windows_add_up(store: ArtifactStore) -> None:
    payload = "z" * MIB
    artifact_id = store.bank_artifact(payload, kind="other").artifact_id
    pages = [page_of(store, artifact_id, offset, 100_000) for offset in range(0, MIB, 100_000)]
    assert "".join(page.content for page in pages) == payload
    assert [page.has_more for page in pages] == [True] * 10 + [False]
    assert page_of(store, artifact_id, 1_000, 250).content == payload[1_000:1_250]


@pytest.mark.case("NA-11")
def test_a_reference_survives_json(store: ArtifactStore) -> None:
    reference = store.bank_artifact("a\0b\ud800", kind="other", label="\udcff")
    assert Reference.model_validate_json(reference.model_dump_json()) == reference


@pytest.mark.case("NA-13")
@pytest.mark.case("NA-14")
def test_ids_that_are_unknown_or_lead_elsewhere_find_nothing(store: ArtifactStore) -> None:
    real = store.bank_artifact("x", kind="other").artifact_id
    for identifier in ("unknown", f"../artifacts/{real}", "..", "sub/dir", ".", "", f"{real}.meta", real + "\0", "a" * 200, real + "\n"):
        assert store.retrieve_context(identifier) is None
        assert store.read_artifact(identifier) is None
    assert page_of(store, real).content == "x"


@pytest.mark.case("NA-15")
def test_a_second_process_reads_it(bank: Bank, store: ArtifactStore) -> None:
    reference = store.bank_artifact("é" * 200_000, kind="other", session="s", label="l")
    other = ArtifactStore(Bank(bank.root.path))
    assert page_of(other, reference.artifact_id, 100_000, 3).content == "ééé"
    assert other.find(session="s") == (reference,)
    assert other.find(session="t") == ()


@pytest.mark.parametrize(
    "change",
    [{"size_bytes": -1}, {"kind": "x"}, {"extra": 1}, {"artifact_id": "other"}, {"path": "/etc/passwd"}, {"version": 2}, None],
    ids=str,
)
def test_a_sidecar_is_believed_only_where_every_field_is_right(bank: Bank, store: ArtifactStore, change: dict[str, object] | None) -> None:
    artifact_id = store.bank_artifact("x", kind="other").artifact_id
    sidecar = Path(bank.root.path, "artifacts", artifact_id + ".meta.json")
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | change) if change else "[")
    assert store.retrieve_context(artifact_id) is None
    assert store.find() == ()


def test_a_sidecar_cannot_lead_out_of_the_bank(bank: Bank, store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "secret.0.log").write_text("secret")
    artifact_id = store.bank_artifact("x", kind="other").artifact_id
    sidecar = Path(bank.root.path, "artifacts", artifact_id + ".meta.json")
    for change in ({"job_id": "../..", "stream": "secret"}, {"job_id": None, "stream": "secret"}, {"job_id": "job", "stream": "../x"}):
        sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | change))
        assert store.retrieve_context(artifact_id) is None
    payload = Path(bank.root.path, "artifacts", artifact_id + ".0.log")
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | {"job_id": None, "stream": None}))
    assert page_of(store, artifact_id).content == "x"
    payload.unlink()
    payload.symlink_to(tmp_path / "secret.0.log")
    assert page_of(ArtifactStore(bank), artifact_id).content == ""


def test_a_search_pages_through_its_matches(store: ArtifactStore) -> None:
    artifact_id = store.bank_artifact("".join(f"line {n} ERROR\n" for n in range(120)), kind="other").artifact_id
    first = store.retrieve_context(artifact_id, pattern="error")
    assert isinstance(first, SearchPage)
    assert (len(first.matches), first.total_matches, first.truncated) == (50, 120, True)
    assert first.next_search_offset is not None
    second = store.retrieve_context(artifact_id, pattern="error", offset=first.next_search_offset)
    assert isinstance(second, SearchPage)
    assert (second.matches[0].line, second.total_matches) == (51, 70)


def test_a_stream_is_an_artifact_without_being_copied(bank: Bank, store: ArtifactStore) -> None:
    account = bank.open_account("job", cap=MIB)
    data = os.urandom(1000) + b"\0\xff"
    account.writer("stdout").write(data)
    account.close()
    reference = store.bank_stream(account, "stdout", label="cmd")
    empty = store.bank_stream(account, "stderr", label="cmd")
    assert (reference.size_bytes, empty.size_bytes, reference.kind) == (1002, 0, "command-output")
    assert len(reference.preview) <= 601
    assert not list(Path(bank.root.path, "artifacts").glob("*.log"))
    reader = ArtifactStore(Bank(bank.root.path)).reader(reference.artifact_id)
    assert reader is not None
    assert reader.read_bytes().data == data
    assert set(store.find(job_id="job")) == {reference, empty}


def test_a_tail_says_what_was_discarded(bank: Bank, store: ArtifactStore) -> None:
    account = bank.open_account("job", streams=("out",), cap=10, overflow=Overflow.KEEP_TAIL)
    account.writer("out").write(b"0123456789abcde")
    account.close()
    reference = store.bank_stream(account, "out", label="cmd")
    assert "10 bytes, the 5 bytes before them were discarded" in reference.read_back_hint
    assert (reference.size_bytes, reference.preview) == (10, "56789abcde")


@pytest.mark.case("NX-09")
def test_a_stream_that_cannot_be_banked_keeps_its_outcome(bank: Bank, store: ArtifactStore) -> None:
    account = bank.open_account("job", cap=MIB)
    account.writer("stdout").write(b"output" * 200)
    account.close()
    for file in Path(bank.root.path, "artifacts").iterdir():
        file.unlink()
    Path(bank.root.path, "artifacts").rmdir()
    reference = store.bank_stream(account, "stdout", label="cmd")
    assert (reference.artifact_id, reference.label, reference.size_bytes, len(reference.preview)) == ("", "cmd", 1200, 601)
    for part in ("could not be created", "No such file", "retrieve_context has nothing to read", f"{account.path}/stdout.0.log"):
        assert part in reference.read_back_hint


def test_a_removed_stream_is_not_advertised(bank: Bank, store: ArtifactStore) -> None:
    account = bank.open_account("job", cap=MIB)
    account.writer("stdout").write(b"text")
    for file in Path(account.path).iterdir():
        file.unlink()
    account.close()
    reference = store.bank_stream(account, "stdout", label="cmd")
    assert reference.artifact_id == ""
    assert "no longer on this host" in reference.read_back_hint


def test_a_full_disk_leaves_no_half_artifact(small_disk: Path) -> None:
    store = ArtifactStore(Bank(small_disk / "bank"))
    with pytest.raises(StateError, match="ENOSPC"):
        store.bank_artifact(bytes(2 * MIB), kind="other")
    assert list((small_disk / "bank" / "artifacts").iterdir()) == []
    assert store.bank_artifact("fits", kind="other").size_bytes == 4


def test_files_of_a_workspace_become_artifacts(bank: Bank, store: ArtifactStore, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "report.txt").write_text("é" * 2000)
    (workspace / os.fsdecode(b"\xff.bin")).write_bytes(b"\xff")
    (workspace / "link").symlink_to("/etc/passwd")
    root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    result = store.take(root, job_id="job", session="s")
    os.close(root)
    assert [(r.label, r.size_bytes, r.kind) for r in result.references] == [
        ("report.txt", 4000, "stage-output"),
        ("\\xff.bin", 1, "stage-output"),
    ]
    assert [refusal.path for refusal in result.refused] == ["link"]
    other = ArtifactStore(Bank(bank.root.path))
    assert page_of(other, result.references[0].artifact_id, 1990).content == "é" * 10
    metadata = other.metadata(result.references[1].artifact_id)
    assert metadata is not None
    assert metadata.origin == os.fsdecode(b"\xff.bin")


def test_taking_onto_a_full_disk_reports_and_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    store = ArtifactStore(Bank(small_disk / "bank"))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "large").write_bytes(os.urandom(2 * MIB))
    (workspace / "small").write_bytes(b"x")
    root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    result = store.take(root)
    os.close(root)
    assert [refusal.reason for refusal in result.refused] == ["no space left on device"]
    assert [reference.label for reference in result.references] == ["small"]
    assert len(list((small_disk / "bank" / "artifacts").glob("*.log"))) == len(result.references)


def test_purge_spares_what_runs_and_what_is_not_yet_read(bank: Bank, store: ArtifactStore) -> None:
    references = {}
    for name in ("old", "unread", "running"):
        account = bank.open_account(name, cap=MIB)
        account.writer("stdout").write(b"x" * 5000)
        if name != "running":
            account.close()
        references[name] = store.bank_stream(account, "stdout", label=name)
    payload = store.bank_artifact("p", kind="other", job_id="old")
    free, needed = store.bank_artifact("f", kind="other"), store.bank_artifact("n", kind="other")
    removal = store.purge(Retention(max_age=0, max_count=0, max_bytes=0), pinned=["unread", needed.artifact_id])
    assert set(removal.removed) == {"old", free.artifact_id}
    assert (removal.failed, removal.bytes >= 5000) == ((), True)
    assert [store.retrieve_context(r.artifact_id) is None for r in (references["old"], payload, free)] == [True] * 3
    for name in ("unread", "running"):
        assert page_of(store, references[name].artifact_id).total_chars == 5000
    assert page_of(store, needed.artifact_id).content == "n"
    assert list(Path(bank.root.path, "trash").iterdir()) == []
    bank.account("running").close()


def test_purge_finishes_what_an_earlier_one_left(bank: Bank, store: ArtifactStore) -> None:
    left = Path(bank.root.path, "trash", "job.0", "deep")
    left.mkdir(parents=True)
    store.purge(Retention())
    assert list(Path(bank.root.path, "trash").iterdir()) == []


def test_an_artifact_of_a_failed_sink_holds_the_prefix(small_disk: Path) -> None:
    bank = Bank(small_disk / "bank")
    store = ArtifactStore(bank)
    account = bank.open_account("job", cap=64 * MIB)
    with pytest.raises(SinkFailed):
        account.writer("stdout").write(bytes(2 * MIB))
    account.close()
    reference = store.bank_stream(account, "stdout", label="cmd")
    assert reference.size_bytes == account.sizes()["stdout"] > 0
