"""Certificates that cannot be used: one line that names the file and says why, wherever they are loaded."""

import datetime
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives import serialization

from farstep.coordinator.certificates import make_certificates
from farstep.membership.tls import TlsError, TlsFiles


@pytest.fixture
def folder(tmp_path):
    make_certificates(tmp_path, ["a-0", "b-0"])
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a-0.key", b"", "a-0.key cannot be used: it is empty"),
        ("a-0.pem", b"\n", "a-0.pem cannot be used: it is empty"),
        ("ca.pem", b"", "ca.pem cannot be used: it is empty"),
        ("a-0.pem", b"hello", "a-0.pem cannot be used: it is no certificate in PEM form"),
        ("a-0.key", b"hello", "a-0.key cannot be used: it is no private key in PEM form"),
        ("ca.pem", b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", "ca.pem cannot be used: "),
        (
            "a-0.key",
            b"-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n",
            "a-0.key cannot be used: ",
        ),
    ],
)
def test_file_and_cause_are_named(folder, name, content, said):
    (folder / name).write_bytes(content)
    with pytest.raises(TlsError) as caught:
        TlsFiles.in_directory(folder, "a-0")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    files = TlsFiles(folder / "ca.pem", folder / "a-0.pem", folder / "a-0.key")
    for load in (files.client_context, files.server_context):
        with pytest.raises(TlsError, match="cannot be used"):
            load()


def test_key_of_another(folder):
    (folder / "a-0.key").write_bytes((folder / "b-0.key").read_bytes())
    with pytest.raises(TlsError, match=r"a-0\.pem cannot be used: .*a-0\.key is not its key"):
        TlsFiles.in_directory(folder, "a-0")


def test_a_key_that_others_can_read_is_warned_of(folder, caplog):
    TlsFiles.in_directory(folder, "a-0")
    assert not caplog.messages
    (folder / "a-0.key").chmod(0o644)
    TlsFiles.in_directory(folder, "a-0")
    assert caplog.messages == [f"{folder / 'a-0.key'} can be read by others (mode 644): chmod 600 it"]


def test_key_with_a_password_is_refused_without_a_question(folder):
    key = serialization.load_pem_private_key((folder / "a-0.key").read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    (folder / "a-0.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )
    with pytest.raises(TlsError, match=r"a-0\.key cannot be used: "):
        TlsFiles.in_directory(folder, "a-0")


def test_certificate_that_has_expired(folder, monkeypatch):
    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) + datetime.timedelta(days=500)

    monkeypatch.setattr("farstep.membership.tls.datetime", SimpleNamespace(datetime=Later, UTC=datetime.UTC))
    with pytest.raises(TlsError, match=r"ca\.pem has expired on .*; make a new authority"):
        TlsFiles.in_directory(folder, "a-0")


def test_missing_ones_are_made_by_the_command_that_is_named(tmp_path):
    for name, option, said in [
        ("a-0", "--name", "--name a-0`"),
        ("operator", "--operator", "--operator operator`"),
        ("coordinator", "--name", f"certificates {tmp_path}`"),
    ]:
        with pytest.raises(FileNotFoundError) as caught:
            TlsFiles.in_directory(tmp_path, name, option=option)
        assert said in str(caught.value)
