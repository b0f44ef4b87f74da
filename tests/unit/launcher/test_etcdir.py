"""The /etc that jobs see."""

from __future__ import annotations

from pathlib import Path

from stockade.launcher import etcdir


def test_only_what_is_allowed_and_readable_by_everybody_is_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "ssl" / "certs").mkdir(parents=True)
    (source / "ssl" / "private").mkdir()
    (source / "ssl" / "certs" / "a.pem").write_text("certificate")
    (source / "ssl" / "certs" / "b.pem").symlink_to("/usr/share/b.pem")
    (source / "ssl" / "private" / "key").write_text("secret")
    (source / "shadow").write_text("root:secret")
    (source / "passwd").write_text("alice:x:1000:1000::/home/alice:/bin/sh\n")
    (source / "services").write_text("http 80/tcp\n")
    (source / "localtime").write_text("hidden")
    (source / "localtime").chmod(0o600)
    target.mkdir()

    etcdir.compose(str(source), str(target))

    assert (target / "ssl" / "certs" / "a.pem").read_text() == "certificate"
    assert (target / "ssl" / "certs" / "b.pem").readlink() == Path("/usr/share/b.pem")
    assert (target / "services").read_text() == "http 80/tcp\n"
    assert not (target / "ssl" / "private").exists()
    assert not (target / "shadow").exists()
    assert not (target / "localtime").exists()
    assert "alice" not in (target / "passwd").read_text()
    assert "job:x:1000:1000" in (target / "passwd").read_text()


def test_a_root_without_etc_gets_one(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    etcdir.compose(str(tmp_path / "missing"), str(tmp_path / "etc"))
    assert sorted(path.name for path in (tmp_path / "etc").iterdir()) == sorted(etcdir.synthesized())
