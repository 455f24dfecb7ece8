"""Protected connections over real sockets, and who is let into one."""

import hashlib
import hmac
import json
import pickle
import random
import struct
from dataclasses import replace

import numpy as np
import pytest

from farstep import _native
from farstep.engine import (
    Endpoint,
    EndpointProfile,
    EngineError,
    Identity,
    InvalidFieldError,
    Protection,
    SecurityError,
    SecurityProfile,
)
from farstep.engine import connection as connection_module
from farstep.engine.key_agreement import EphemeralKey
from tests.integration.engine_pair import WAIT_S, engine_pair
from tests.integration.wiretap import SMALL, identities, joined, secured, tapped_pair

CONTENT = random.Random(9).randbytes(40_001)
TRAILER_BYTES = 24


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return identities(tmp_path_factory.mktemp("certificates"), "alice", "bob", "group-*")


@pytest.fixture
def recorded(monkeypatch):
    """The secrets of every connection made, by what its descriptor says."""
    found = {}
    genuine = EphemeralKey.secrets

    def record(self, own, peer, *rest, **options):
        made = genuine(self, own, peer, *rest, **options)
        found[own] = made
        return made

    monkeypatch.setattr(EphemeralKey, "secrets", record)
    return found


def expand(secret, label, length):
    return hmac.digest(secret, label.encode() + b"\1", "sha256")[:length]


@pytest.mark.parametrize("protection", ["encrypt", "authenticate"])
@pytest.mark.parametrize("key_bits", [128, 256])
def test_packets_are_what_the_documentation_says(people, recorded, protection, key_bits):
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    profile_a = secured(SMALL, people["alice"], protection, key_bits=key_bits)
    with tapped_pair(profile_a, secured(SMALL, people["bob"], "authenticate")) as (pair, to_b, to_a):
        assert pair.send(CONTENT).tobytes() == CONTENT
        assert pair.to_b.protection is pair.to_a.protection is Protection(protection)
        assert (pair.to_b.peer_identity, pair.to_a.peer_identity) == ("bob", "alice")
        secrets = recorded[pair.to_b._body]
        assert secrets.sending == recorded[pair.to_a._body].receiving != secrets.receiving
        assert "sending" not in repr(secrets)
        for tap, secret in ((to_b, secrets.sending), (to_a, secrets.receiving)):
            cipher = AESGCM(expand(secret, "farstep packet key", key_bits // 8))
            iv = int.from_bytes(expand(secret, "farstep packet iv", 12))
            numbers, plaintext, kinds = set(), b"", set()
            for datagram in list(tap.seen):
                header_bytes = {0xDC: 48, 0xDD: 32, 0xDE: 28, 0xD1: 16}.get(datagram[0])
                if header_bytes is None:
                    header_bytes = 36 + 4 * (datagram[0] in (0xC9, 0xCB))
                header, number = datagram[:header_bytes], datagram[-TRAILER_BYTES:-16]
                assert header[1] & 0x0F == 1, "the version says that it is protected"
                body, tag = datagram[header_bytes:-TRAILER_BYTES], datagram[-16:]
                nonce = (iv ^ int.from_bytes(number)).to_bytes(12)
                masked = header[:4] + b"\xff" + header[5:]
                if protection == "encrypt":
                    plaintext += cipher.decrypt(nonce, body + tag, masked)
                else:
                    cipher.decrypt(nonce, tag, masked + body)
                    plaintext += body
                assert number not in numbers, "a packet number is never used twice"
                numbers.add(number)
                kinds.add(datagram[0])
            assert {0xDC} <= kinds if tap is to_a else {0xC6, 0xC7, 0xDE} <= kinds
            if tap is to_b:
                assert CONTENT[:20_000] in plaintext
                on_the_line = b"".join(tap.seen)
                assert (CONTENT[5000:5100] in on_the_line) == (protection == "authenticate")
        stats = pair.a.stats()
        assert stats.sealed > 40
        assert stats.opened > 0
        assert stats.rejected["forged"] == stats.rejected["replayed"] == stats.rejected["unprotected"] == 0


def test_keys_are_replaced_while_data_flows(people, monkeypatch):
    genuine = connection_module.parameters_for

    def with_short_epochs(*arguments):
        parameters = genuine(*arguments)
        parameters.epoch_bits = 6
        return parameters

    monkeypatch.setattr(connection_module, "parameters_for", with_short_epochs)
    profile = replace(SMALL, burst_segments=15)
    with tapped_pair(
        secured(profile, people["alice"], "encrypt"), secured(profile, people["bob"], "encrypt")
    ) as (
        pair,
        _,
        _,
    ):
        content = random.Random(1).randbytes(3_000_000)
        assert pair.send(content).tobytes() == content
        assert pair.a.stats().key_updates > 30
        assert pair.b.stats().rejected["forged"] < 100, "what lost its key on the way is sent again"


def test_plain_connections_stay_as_they_were(people):
    with tapped_pair(SMALL, SMALL) as (pair, to_b, _):
        assert b"security" not in pair.to_b.descriptor
        assert json.loads(pair.to_b.descriptor)["version"] == 1
        assert pair.send(CONTENT).tobytes() == CONTENT
        assert all(d[1] & 0x0F == 0 for d in to_b.seen)
        assert pair.to_b.protection is Protection.OFF
        assert pair.a.stats().sealed == pair.a.stats().opened == 0
    own_site = replace(SMALL, security=SecurityProfile(identity=people["alice"]))
    with engine_pair(["127.0.0.1"], profile=own_site) as pair:
        assert pair.to_b.protection is Protection.OFF, "within a site, unless it is asked for"
        assert pair.to_b.peer_identity == "alice"
        assert pair.send(CONTENT).tobytes() == CONTENT


def test_protection_within_a_site(people):
    wish = SecurityProfile(identity=people["alice"], within_site="authenticate")
    with engine_pair(["127.0.0.1"] * 2, profile=EndpointProfile(security=wish)) as pair:
        assert pair.to_b.protection is Protection.AUTHENTICATE
        assert pair.send(CONTENT).tobytes() == CONTENT
        pair.a.set_port_up(0, is_up=False)
        assert pair.send(CONTENT).tobytes() == CONTENT
        # The peer was told under protection, too.
        assert pair.b.stats().port_updates == 1
        target = pair.send(b"over one port")
        assert target.tobytes() == b"over one port"


def test_messages_of_every_size_arrive_protected(people):
    profile = replace(SMALL, mtu_bytes=256, burst_segments=15)
    with tapped_pair(
        secured(profile, people["alice"], "encrypt"), secured(profile, people["bob"], "encrypt")
    ) as (
        pair,
        _,
        _,
    ):
        for length in (0, 1, 2, 3, 4, 255, 256, 257, 1023, 70_000):
            assert pair.send(CONTENT[:length] * (1 + (length == 70_000))).nbytes in (length, 80_002)


def test_the_end_of_a_connection_is_told_even_before_it_begins(people):
    profile = secured(SMALL, people["alice"], "encrypt")
    with (
        Endpoint(["127.0.0.1"], profile=profile, site="x") as a,
        Endpoint(["127.0.0.1"], profile=profile, site="y") as b,
    ):
        to_b, to_a = a.create_connection(), b.create_connection()
        to_b.connect(to_a.descriptor)
        to_b.close()
        to_a.connect(to_b.descriptor)
        with pytest.raises(EngineError, match="closed it"):
            to_a.wait_immediate(WAIT_S)


# ---- what two ends agree on -----------------------------------------------------------------------------------------


def connect_ends(profile_a, profile_b, sites=("x", "y"), expected=(None, None), change=lambda d: d):
    with (
        Endpoint(["127.0.0.1"], profile=profile_a, name="a", site=sites[0]) as a,
        Endpoint(["127.0.0.1"], profile=profile_b, name="b", site=sites[1]) as b,
    ):
        to_b = a.create_connection(peer_name="b", peer_identity=expected[0])
        to_a = b.create_connection(peer_name="a", peer_identity=expected[1])
        to_b.connect(change(to_a.descriptor))
        to_a.connect(to_b.descriptor)
        return to_b.protection, to_a.protection


ORDER = list(Protection)


@pytest.mark.parametrize("own", ORDER)
@pytest.mark.parametrize("other", ORDER)
def test_the_stronger_wish_counts(people, own, other):
    stronger = max(own, other, key=ORDER.index)
    made = connect_ends(secured(SMALL, people["alice"], own), secured(SMALL, people["bob"], other))
    assert made == (stronger, stronger)


def test_an_end_without_a_certificate_is_told_what_is_missing(people):
    bare, alice = SMALL, secured(SMALL, people["alice"], "off")
    with pytest.raises(
        SecurityError, match=r"to 'b': this endpoint has a certificate and the peer shows none"
    ):
        connect_ends(alice, bare)
    with pytest.raises(SecurityError, match="the peer has a certificate and this endpoint none"):
        connect_ends(bare, alice)
    wants = replace(SMALL, security=SecurityProfile(between_sites="authenticate"))
    with pytest.raises(
        SecurityError, match=r"mode authenticate.*neither end has a certificate.*between_sites='off'"
    ):
        connect_ends(wants, wants)
    with pytest.raises(InvalidFieldError, match=r"within_site = 'encrypt'.*'off' where there is no identity"):
        SecurityProfile(within_site="encrypt")
    with pytest.raises(InvalidFieldError, match="one of 'off', 'authenticate', 'encrypt'"):
        SecurityProfile(between_sites="strong")
    with pytest.raises(SecurityError, match="cannot check that"):
        connect_ends(bare, bare, expected=("bob", None))


def test_ends_on_different_machines_and_sites_are_encrypted_by_default():
    from farstep.engine.security import NO_OFFER, agree

    with pytest.raises(SecurityError, match="mode encrypt"):
        agree(NO_OFFER, NO_OFFER, is_same_site=False, is_local=False)
    off = replace(NO_OFFER, between_sites="off")
    with pytest.raises(SecurityError, match="the peer is to be protected"):
        agree(off, NO_OFFER, is_same_site=False, is_local=False)
    assert agree(off, off, is_same_site=False, is_local=False).protection is Protection.OFF
    assert agree(NO_OFFER, NO_OFFER, is_same_site=True, is_local=False).protection is Protection.OFF


def test_without_libcrypto_only_off_works(people, monkeypatch):
    monkeypatch.setattr(_native, "why_no_libcrypto", lambda: "the library libcrypto is missing")
    alice = secured(SMALL, people["alice"], "encrypt")
    with pytest.raises(
        SecurityError, match="mode encrypt is asked for, and the library libcrypto is missing"
    ):
        connect_ends(alice, alice)
    off = secured(SMALL, people["alice"], "off")
    assert connect_ends(off, off)[0] is Protection.OFF


# ---- who is let in --------------------------------------------------------------------------------------------------


def changed(field, value):
    def change(descriptor):
        body, signature = descriptor.split(b"\n")
        fields = json.loads(body)
        if field in fields["security"]:
            fields["security"][field] = value
        else:
            fields[field] = value
        return json.dumps(fields).encode() + b"\n" + signature

    return change


@pytest.mark.parametrize(
    ("field", "value"),
    [("site", "x"), ("between_sites", "off"), ("qpn", 77), ("public_key", "11" * 32), ("key_bits", 256)],
)
def test_a_descriptor_that_was_changed_on_the_way_is_refused(people, field, value):
    alice, bob = (secured(SMALL, people[name], "encrypt") for name in ("alice", "bob"))
    with pytest.raises(SecurityError, match="was not signed by 'bob', or was changed since"):
        connect_ends(alice, bob, change=changed(field, value))


def test_a_descriptor_whose_security_was_cut_out_is_refused(people):
    def stripped(descriptor):
        fields = json.loads(descriptor.split(b"\n")[0])
        del fields["security"]
        return json.dumps({**fields, "version": 1, "site": "x"}).encode()

    alice, bob = (secured(SMALL, people[name], "encrypt") for name in ("alice", "bob"))
    with pytest.raises(SecurityError, match="the peer shows none"):
        connect_ends(alice, bob, change=stripped)


def test_who_has_no_certificate_of_ours_is_refused(people, tmp_path):
    from farstep.coordinator.certificates import make_certificates

    alice = secured(SMALL, people["alice"], "encrypt")
    stranger = identities(tmp_path / "other", "bob")["bob"]
    with pytest.raises(SecurityError, match="certificate, of 'bob', is not one of"):
        connect_ends(alice, secured(SMALL, stranger, "encrypt"))
    folder = people["alice"].authority.parent
    make_certificates(folder, [], operators=("root",))
    operator = Identity.in_directory(folder, "root")
    with pytest.raises(SecurityError, match="has the role operator"):
        connect_ends(alice, secured(SMALL, operator, "encrypt"))
    with pytest.raises(SecurityError, match=r"nobody\.pem is missing; `farstep certs issue"):
        Identity.in_directory(folder, "nobody")
    wrong = Identity(people["alice"].authority, people["alice"].certificate, people["bob"].key)
    with pytest.raises(SecurityError, match=r"bob\.key is not the key of .*alice\.pem"):
        Endpoint(["127.0.0.1"], profile=secured(SMALL, wrong, "encrypt"))


def test_the_peer_has_to_be_who_is_expected(people):
    alice, bob = (secured(SMALL, people[name], "encrypt") for name in ("alice", "bob"))
    assert connect_ends(alice, bob, expected=("bob", "alice"))[0] is Protection.ENCRYPT
    with pytest.raises(SecurityError, match="certificate of 'bob', expected was that of 'carol'"):
        connect_ends(alice, bob, expected=("carol", None))
    group = Identity.in_directory(people["alice"].authority.parent, "group-@")
    assert connect_ends(alice, secured(SMALL, group, "encrypt"), expected=("group-7", None))


def test_an_expired_certificate_is_refused(people, monkeypatch):
    import datetime

    from farstep.engine import key_agreement

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + datetime.timedelta(days=4000)

    alice = secured(SMALL, people["alice"], "encrypt")
    monkeypatch.setattr(key_agreement.datetime, "datetime", Later)
    with pytest.raises(SecurityError, match=r"certificate, of 'alice', is valid from .* to .*; today is"):
        connect_ends(alice, alice)


def test_a_stolen_public_key_opens_nothing(people):
    # Bob signs what Alice's peer has published as his own: both then believe in different peers, and share no key.
    alice, bob = (secured(SMALL, people[name], "encrypt") for name in ("alice", "bob"))
    with (
        Endpoint(["127.0.0.1"], profile=alice, site="x") as a,
        Endpoint(["127.0.0.1"], profile=alice, site="y") as genuine,
        Endpoint(["127.0.0.1"], profile=bob, site="y") as thief,
    ):
        to_peer, back = a.create_connection(), genuine.create_connection()
        stolen = thief.create_connection()
        fields = json.loads(stolen._body)
        fields["security"]["public_key"] = json.loads(back._body)["security"]["public_key"]
        for name in ("qpn", "start_psn", "ports"):
            fields[name] = json.loads(back._body)[name]
        body = json.dumps(fields).encode()
        from farstep.engine.key_agreement import sign

        to_peer.connect(body + b"\n" + sign(people["bob"], body))
        back.connect(to_peer.descriptor)
        region = a.register(b"x" * 100)
        memory = bytearray(100)
        landing = genuine.register(memory)
        completion = to_peer.write(region, 0, 100, landing.remote, 0)
        with pytest.raises(TimeoutError):
            completion.wait(0.3)
        assert memory == bytes(100)
        assert genuine.stats().rejected["forged"] > 0


def test_a_profile_with_an_identity_can_be_sent_to_another_process(people):
    profile = secured(SMALL, people["alice"], "encrypt")
    assert pickle.loads(pickle.dumps(profile)) == profile


def test_a_connection_that_was_made_before_can_be_made_again(people):
    alice, bob = (secured(SMALL, people[name], "encrypt") for name in ("alice", "bob"))
    with tapped_pair(alice, bob) as (pair, _, _):
        for _ in range(3):
            to_b, to_a = joined(pair.a, pair.b)
            assert to_b.is_open
            assert to_b.protection is Protection.ENCRYPT
            to_b.close()
            to_a.close()
        assert np.array_equal(pair.send(CONTENT), np.frombuffer(CONTENT, np.uint8))


def test_channel_secrets_have_to_match(people):
    alice = secured(SMALL, people["alice"], "encrypt")
    with (
        Endpoint(["127.0.0.1"], profile=alice, site="x") as a,
        Endpoint(["127.0.0.1"], profile=alice, site="y") as b,
    ):
        for secrets, works in (((b"same", b"same"), True), ((b"one", b"other"), False)):
            to_b, to_a = a.create_connection(), b.create_connection()
            to_b.connect(to_a.descriptor, channel_secret=secrets[0])
            to_a.connect(to_b.descriptor, channel_secret=secrets[1])
            region, landing = a.register(b"x"), b.register(bytearray(1))
            completion = to_b.write(region, 0, 1, landing.remote, 0)
            if works:
                completion.wait(WAIT_S)
                continue
            with pytest.raises(TimeoutError):
                completion.wait(0.2)


def test_the_secret_is_hkdf_of_what_both_ends_know(people, recorded):
    alice = secured(SMALL, people["alice"], "encrypt")
    taken = {}
    genuine = EphemeralKey.secrets

    with (
        Endpoint(["127.0.0.1"], profile=alice, site="x") as a,
        Endpoint(["127.0.0.1"], profile=alice, site="y") as b,
    ):
        to_b, to_a = a.create_connection(), b.create_connection()
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        peer_public = bytes.fromhex(json.loads(to_a._body)["security"]["public_key"])
        taken["shared"] = to_b._key._private.exchange(X25519PublicKey.from_public_bytes(peer_public))
        to_b.connect(to_a.descriptor)
        to_a.connect(to_b.descriptor)
        parts = sorted((to_b._body, to_a._body))
        both = b"".join(struct.pack(">I", len(p)) + p for p in parts)
        salt = hashlib.sha256(b"farstep keys 1\0" + both).digest()
        extracted = hmac.digest(salt, taken["shared"], "sha256")
        info = b"farstep traffic encrypt 128 " + hashlib.sha256(to_b._body).digest() + b"\1"
        assert recorded[to_b._body].sending == hmac.digest(extracted, info, "sha256")
    assert genuine is EphemeralKey.secrets
