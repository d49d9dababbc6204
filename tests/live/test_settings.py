"""What a gateway is told, and who may ask it."""

from __future__ import annotations

import hashlib

import pytest

from assay.live import keys
from assay.live.settings import KeySettings, convert, read, read_file
from assay.live.upstream import Address
from assay.record.errors import BadInput

ENGINE = '[[engine]]\nurl = "http://127.0.0.1:1"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port = 99999", "port: Expected `int` <= 65535"),
        ("polcy = 'x'", "unknown setting 'polcy'"),
        ("inflight = 0", "inflight: Expected `int` >= 1"),
        ("deadline = -1", "deadline: Expected `float` > 0"),
        ("[[engine]]\nname = 'x'", "engine[0]: Object missing required field 'url'"),
        ("[[key]]\ntenant = 'x'\nsha256 = '12'", "key of 'x': give sha256"),
        ("tls_cert = 'a.pem'", "TLS needs both"),
        ("port = ", "gateway.toml:"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(text, says):
    with pytest.raises(BadInput) as error:
        read(text.encode())
    assert says.replace("`", "'") in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(BadInput, match="cannot read"):
        read_file(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://10.0.0.7:8000/", "http://10.0.0.7:8000"),
        ("gpu-3:8000", "http://gpu-3:8000"),
        ("https://x", "https://x:443"),
        ("http://[::1]:9/a/", "http://[::1]:9/a"),
    ],
)
def test_addresses_of_engines(url, kept):
    assert Address.of(url).url == kept


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "http://x:99999999", "http://u:p@x", "http://x/v1", "http://x?q"]
)
def test_what_is_no_engine_is_refused_with_what_would_be_right(url):
    with pytest.raises(BadInput, match="write"):
        Address.of(url)


def test_keys_come_from_digests_or_the_environment(monkeypatch):
    monkeypatch.setenv("ACME_KEY", "secret")
    known = keys.read(
        [KeySettings("acme", env="ACME_KEY"), KeySettings("b", sha256=hashlib.sha256(b"two").hexdigest(), tier="batch")]
    )
    assert known.find({b"authorization": b"Bearer secret"}).tenant == "acme"
    assert known.find({b"authorization": b"bearer two"}).tier == "batch"
    for wrong in (b"Bearer ", b"Bearer secret2", b"secret", b"", b"Bearer \xff", None):
        assert known.find({b"authorization": wrong} if wrong is not None else {}) is None


def test_the_line_break_at_the_end_of_a_secret_s_file_is_no_part_of_the_key(monkeypatch):
    monkeypatch.setenv("ACME_KEY", "secret\n")
    assert keys.read([KeySettings("acme", env="ACME_KEY")]).find({b"authorization": b"Bearer secret"}).tenant == "acme"


@pytest.mark.parametrize("address", ["collector:4318", "http://", "not a url", "grpc://collector:4317"])
def test_what_is_no_collector_is_refused_with_what_would_be_right(address):
    with pytest.raises(BadInput, match="http://collector:4318"):
        convert({"otel": address}, "test")


def test_a_key_that_is_not_in_the_environment_is_said_so(monkeypatch):
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(BadInput, match="NOT_THERE"):
        keys.read([KeySettings("acme", env="NOT_THERE")])


def test_nothing_shows_a_key():
    known = keys.read([KeySettings("b", sha256=hashlib.sha256(b"two").hexdigest())])
    assert "two" not in repr(vars(known))
