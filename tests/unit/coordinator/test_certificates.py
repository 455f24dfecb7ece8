"""Certificates of a run: who gets which role, what stays, what is made anew, and who can read the keys."""

import datetime
import ssl
import stat

import pytest
from cryptography import x509

from farstep.coordinator import certificates
from farstep.coordinator.certificates import (
    CertificateError,
    PeerRole,
    covers,
    make_certificates,
    role_of,
)
from farstep.membership.tls import COORDINATOR_NAME, TlsFiles


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def alternatives(path):
    return read(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def shake_hands(client: TlsFiles, server: TlsFiles, name=COORDINATOR_NAME):
    """Does a handshake in memory and returns what the server learns of the client."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.client_context().wrap_bio(to_client, to_server, server_hostname=name)
    there = server.server_context().wrap_bio(to_server, to_client, server_side=True)
    pending = [here, there]
    for _ in range(10):
        for side in list(pending):
            try:
                side.do_handshake()
                pending.remove(side)
            except ssl.SSLWantReadError:
                continue
    assert not pending
    return there.getpeercert()


def test_everybody_gets_a_certificate_of_their_role(tmp_path):
    made = make_certificates(tmp_path, ["a-0", "coordinator", "b-0"], operators=("ana",))
    assert [(item.name, item.role, item.is_new) for item in made] == [
        ("coordinator", PeerRole.COORDINATOR, True),
        ("a-0", PeerRole.MEMBER, True),
        ("b-0", PeerRole.MEMBER, True),
        ("ana", PeerRole.OPERATOR, True),
    ]
    server = TlsFiles.in_directory(tmp_path, "coordinator")
    for name, role in (("a-0", PeerRole.MEMBER), ("ana", PeerRole.OPERATOR)):
        certificate = shake_hands(TlsFiles.in_directory(tmp_path, name), server)
        assert role_of(certificate["subject"]) == (role, name)


def test_keys_are_for_their_owner_alone(tmp_path):
    make_certificates(tmp_path, ["a-0"])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    secret = [name for name in modes if name.endswith((".key", ".p12"))]
    assert len(secret) == 5
    assert {modes[name] for name in secret} == {0o600}
    assert not [name for name in modes if name.startswith(".")]


def test_what_is_there_stays_and_names_can_be_added(tmp_path):
    make_certificates(tmp_path, ["a-0"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    made = make_certificates(tmp_path, ["a-0", "a-1"])
    assert [item.name for item in made if item.is_new] == ["a-1"]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_what_has_expired_is_made_anew(tmp_path, monkeypatch):
    make_certificates(tmp_path, ["a-0"], valid_days=100)
    monkeypatch.setattr(certificates, "_expiry", lambda days: datetime.datetime.now(datetime.UTC))
    make_certificates(tmp_path, ["a-0"], is_renewal=True)
    monkeypatch.undo()
    assert read(tmp_path / "a-0.pem").not_valid_after_utc <= datetime.datetime.now(datetime.UTC)
    assert all(item.is_new for item in make_certificates(tmp_path, ["a-0"]))
    shake_hands(TlsFiles.in_directory(tmp_path, "a-0"), TlsFiles.in_directory(tmp_path, "coordinator"))


def test_renewal_replaces_keys_and_keeps_the_authority(tmp_path):
    make_certificates(tmp_path, ["a-0"])
    authority, key = (tmp_path / "ca.pem").read_bytes(), (tmp_path / "a-0.key").read_bytes()
    assert all(item.is_new for item in make_certificates(tmp_path, ["a-0"], is_renewal=True))
    assert (tmp_path / "ca.pem").read_bytes() == authority
    assert (tmp_path / "a-0.key").read_bytes() != key


def test_a_new_host_makes_the_coordinators_certificate_anew(tmp_path):
    make_certificates(tmp_path, ["a-0"])
    made = make_certificates(tmp_path, ["a-0"], hosts=("train.example", "2001:db8::7"))
    assert [item.name for item in made if item.is_new] == ["coordinator"]
    named = alternatives(tmp_path / "coordinator.pem")
    assert {"train.example", COORDINATOR_NAME} <= set(named.get_values_for_type(x509.DNSName))
    assert "2001:db8::7" in map(str, named.get_values_for_type(x509.IPAddress))
    assert not any(item.is_new for item in make_certificates(tmp_path, ["a-0"], hosts=("train.example",)))


def test_nothing_outlives_the_authority(tmp_path):
    make_certificates(tmp_path, [], valid_days=10)
    (item,) = [c for c in make_certificates(tmp_path, ["late"], valid_days=300) if c.name == "late"]
    assert item.valid_until == read(tmp_path / "ca.pem").not_valid_after_utc


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: (d / "ca.key").unlink(), r"ca\.key is missing"),
        (lambda d: (d / "ca.pem").unlink(), r"ca\.pem is missing"),
        (lambda d: (d / "ca.pem").write_text("x"), r"ca\.pem is no certificate"),
        (lambda d: (d / "ca.key").write_text("x"), r"ca\.key cannot be read"),
        (lambda d: (d / "ca.key").write_bytes((d / "a-0.key").read_bytes()), "is not the key of"),
        (lambda d: (d / "a-0.pem").write_text("x"), r"a-0\.pem is no certificate"),
    ],
)
def test_a_broken_folder_is_told(tmp_path, change, says):
    make_certificates(tmp_path, ["a-0"])
    change(tmp_path)
    with pytest.raises(CertificateError, match=says):
        make_certificates(tmp_path, ["a-0"])


@pytest.mark.parametrize(
    ("certified", "name", "is_observer", "may"),
    [
        ("a-0", "a-0", False, True),
        ("a-0", "b-0", False, False),
        ("a-0", "a-00", False, False),
        ("a-0", "a-0.agent", True, True),
        ("a-0", "a-0.agent", False, False),
        ("a-0", "b-0.agent", True, False),
        ("a-*", "a-17", False, True),
        ("a-*", "a-17.agent", True, True),
        ("a-*", "b-17", False, False),
        ("*", "b-17", False, True),
    ],
)
def test_a_certificate_covers_its_own_name(certified, name, is_observer, may):
    assert covers(certified, name, is_observer=is_observer) is may


def test_a_certificate_for_many_names_is_found_by_each_of_them(tmp_path):
    made = make_certificates(tmp_path, ["a-*", "a-0", "*"])
    assert [item.path.name for item in made if item.role is PeerRole.MEMBER] == [
        "a-@.pem",
        "a-0.pem",
        "@.pem",
    ]
    assert not any(item.is_new for item in make_certificates(tmp_path, ["a-*", "*"]))
    server = TlsFiles.in_directory(tmp_path, "coordinator")
    for name, certified in (("a-0", "a-0"), ("a-17", "a-*"), ("b-0", "*")):
        certificate = shake_hands(TlsFiles.in_directory(tmp_path, name), server)
        assert role_of(certificate["subject"]) == (PeerRole.MEMBER, certified)
    with pytest.raises(CertificateError, match="cannot be the name"):
        make_certificates(tmp_path, [], operators=("an*",))


@pytest.mark.parametrize("name", ["", "a*b", "a b", "../x", "ca", "-x", "x" * 65])
def test_names_that_cannot_be_files_are_refused(tmp_path, name):
    with pytest.raises(CertificateError, match="cannot be the name of a certificate"):
        make_certificates(tmp_path / "new", [name])
    assert not (tmp_path / "new").exists()


def test_a_name_keeps_its_role(tmp_path):
    with pytest.raises(CertificateError, match="both a member and an operator"):
        make_certificates(tmp_path, ["ana"], operators=("ana",))
    with pytest.raises(CertificateError, match="cannot be the name"):
        make_certificates(tmp_path, [], operators=("coordinator",))
    make_certificates(tmp_path, ["ana"])
    with pytest.raises(CertificateError, match="is a certificate of the member ana"):
        make_certificates(tmp_path, [], operators=("ana",))


def test_an_unwritable_folder_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CertificateError, match="cannot be written"):
        make_certificates(tmp_path / "file" / "pki", [])


def test_a_certificate_of_another_authority_is_refused(tmp_path):
    make_certificates(tmp_path / "one", ["a-0"])
    make_certificates(tmp_path / "two", ["a-0"])
    with pytest.raises(ssl.SSLError):
        shake_hands(
            TlsFiles.in_directory(tmp_path / "two", "a-0"),
            TlsFiles.in_directory(tmp_path / "one", "coordinator"),
        )


def test_a_member_cannot_pretend_to_be_a_coordinator(tmp_path):
    make_certificates(tmp_path, ["a-0", "farstep-coordinator"])
    with pytest.raises(ssl.SSLError):
        shake_hands(
            TlsFiles.in_directory(tmp_path, "a-0"), TlsFiles.in_directory(tmp_path, "farstep-coordinator")
        )


@pytest.mark.parametrize(
    "subject", [None, (), ((("commonName", "x"),),), ((("organizationalUnitName", "king"),),)]
)
def test_a_subject_without_a_role_has_none(subject):
    assert role_of(subject) is None
