import pytest

from farstep.membership.addresses import AddressBook, AddressError, member_url


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("host", "ws://host:7077/v1/member"),
        ("host:1234", "ws://host:1234/v1/member"),
        ("wss://host:1", "wss://host:1/v1/member"),
        ("https://host", "wss://host:7077/v1/member"),
        ("http://host:80/", "ws://host:80/v1/member"),
        ("[::1]:5", "ws://[::1]:5/v1/member"),
    ],
)
def test_short_addresses_are_completed(address, url):
    assert member_url(address) == url


@pytest.mark.parametrize("address", ["ftp://host", "ws://", "host:port", "host:99999", "ws://host/other"])
def test_what_is_no_address_is_named(address):
    with pytest.raises(AddressError, match="coordinator"):
        AddressBook(["good:1", address])


@pytest.mark.parametrize("nothing", ["", " , ", []])
def test_no_address_at_all_is_an_error(nothing):
    with pytest.raises(AddressError, match="no coordinator is named"):
        AddressBook(nothing)


def test_files_are_read_at_every_attempt_and_may_be_missing_or_broken(tmp_path):
    file = tmp_path / "coordinators"
    book = AddressBook(f"one:1, file:{file}")
    assert book.urls() == ["ws://one:1/v1/member"]
    file.write_text("# those that are up\nwss://two:2  # second\n\nhalf://wri\none:1\n")
    assert book.urls() == ["ws://one:1/v1/member", "wss://two:2/v1/member"]
    file.write_bytes(b"\xff\xfe\xff")
    assert book.urls() == ["ws://one:1/v1/member"]


@pytest.mark.parametrize("form", ["file:{}", "file://{}"])
def test_what_never_will_be_a_file_is_refused_at_once(tmp_path, form):
    (tmp_path / "file").write_text("host")
    for path, word in [
        (tmp_path, "is a folder"),
        (tmp_path / "file" / "below", "is a file"),
        (tmp_path / ("x" * 5000), "too long"),
        ("", "names no file"),
        ("a\0b", "names no file"),
        ("a\nb", "names no file"),
    ]:
        with pytest.raises(AddressError, match=word) as caught:
            AddressBook(form.format(path))
        assert str(caught.value).isprintable()
    assert AddressBook(form.format(tmp_path / "later")).urls() == []
    assert AddressBook(form.format(tmp_path / "folder" / "later")).urls() == []


def test_a_file_that_may_not_be_read_is_refused_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("host")
    monkeypatch.setattr(
        "os.access", lambda *args, **kwargs: False
    )  # who may read everything is not stopped by a mode
    with pytest.raises(AddressError, match="may not be read"):
        AddressBook(f"file:{tmp_path / 'file'}")
