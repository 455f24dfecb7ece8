"""The small authority as users meet it: `farstep certs init`, `issue`, `show`."""

import ssl

import pytest

from farstep.coordinator.certificates import make_certificates
from farstep.membership.tls import COORDINATOR_NAME, TlsFiles
from tests.cli.test_coordinator_commands import fails, farstep
from tests.unit.coordinator.test_certificates import shake_hands


def test_an_authority_issues_certificates_and_lists_them(tmp_path):
    folder = tmp_path / "certs"
    begun = farstep("certs", "init", folder, "--host", "train.example")
    assert begun.returncode == 0, begun.stderr
    assert "coordinator.pem  coordinator  made, until" in begun.stdout
    issued = farstep("certs", "issue", folder, "a-0", "b-*")
    assert [line.split()[1:3] for line in issued.stdout.splitlines()] == [["member", "made,"]] * 2
    farstep("certs", "issue", folder, "ana", "--operator")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = farstep("certs", "issue", folder, "a-0", "--renew")
    assert "a-0.pem  member  made" in again.stdout
    changed = {path.name for path in folder.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"a-0.pem", "a-0.key"}
    (folder / "a-0.key").unlink()
    shown = farstep("certs", "show", folder)
    rows = {line.split("  ")[0].strip(): line for line in shown.stdout.splitlines()}
    assert list(rows) == ["farstep run authority", "a-0", "ana", "b-*", "coordinator"]
    assert "without its key" in rows["a-0"]
    assert "operator" in rows["ana"]
    assert all("until 20" in row and "sha256:" in row for row in rows.values())


def test_what_the_authority_cannot_do_is_said(tmp_path):
    fails(farstep("certs", "issue", tmp_path, "a-0"), 2, "there is no authority in", "farstep certs init")
    fails(farstep("certs", "show", tmp_path), 2, "ca.pem is missing", "farstep certs init")
    farstep("certs", "init", tmp_path)
    fails(farstep("certs", "issue", tmp_path, "../x"), 2, "cannot be the name of a certificate")
    fails(farstep("certs", "issue", tmp_path, "x", "--operator", "--days", "0"), 2, "days")
    (tmp_path / "odd.pem").write_text("no certificate")
    fails(farstep("certs", "show", tmp_path), 2, "odd.pem is no certificate")
    foreign = tmp_path / "other"
    make_certificates(foreign, ["stranger"])
    (tmp_path / "odd.pem").write_bytes((foreign / "stranger.pem").read_bytes())
    assert "of another authority  without its key" in farstep("certs", "show", tmp_path).stdout


@pytest.mark.parametrize("name", [COORDINATOR_NAME, "localhost", "train.example"])
def test_a_member_cannot_pass_for_a_coordinator_or_a_host(tmp_path, name):
    make_certificates(tmp_path, [name, "a-0"])
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(TlsFiles.in_directory(tmp_path, "a-0"), TlsFiles.in_directory(tmp_path, name), name)
