"""Sources in requests are taken only below what the operator allows, and only with a digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.adapters.registry import AdapterEntry, KnownAdapters, parse_prefixes
from serving.errors import AdapterError
from serving.fetching.remote_source import HttpsSource, HubSource

DIGEST = "sha256:" + "0123456789abcdef" * 4
LISTED = {"a": AdapterEntry("a", Path("folder"))}
PREFIXES = "hf://my-team/, https://files.example.com/adapters/"


def test_without_prefixes_there_are_the_listed_ones_only():
    known = KnownAdapters(LISTED)
    assert list(known) == ["a"] and "a" in known
    assert f"hf://my-team/b@main#{DIGEST}" not in known


def test_allowed_sources_are_fetched_with_their_digest():
    known = KnownAdapters(LISTED, parse_prefixes(PREFIXES))
    name = f"hf://my-team/b@main#{DIGEST}"
    assert known[name] == AdapterEntry(name, HubSource("my-team/b", "main"), DIGEST)
    assert known[f"https://files.example.com/adapters/c#{DIGEST}"].source == HttpsSource(
        "https://files.example.com/adapters/c/"
    )
    assert list(known) == ["a"]


@pytest.mark.parametrize(
    "source",
    [
        "hf://other/b@main",
        "hf://my-team-2/b@main",
        "hf://my-team/b",
        "hf://my-team/b@../../../other/c/resolve/main",
        "https://files.example.com/adapters/../secret",
        "https://files.example.com/adapters/%2e%2e/secret",
        "https://files.example.com/adapters\\secret",
        "https://files.example.com/adapters/a?key=1",
        "https://files.example.com.evil.org/adapters/a",
        "https://files.example.com@evil.org/adapters/a",
        "http://files.example.com/adapters/a",
        "file:///etc",
        "/etc",
        "https://files.example.com/adapters/" + "a" * 500,
    ],
)
def test_other_sources_are_unknown(source):
    assert f"{source}#{DIGEST}" not in KnownAdapters(LISTED, parse_prefixes(PREFIXES))


@pytest.mark.parametrize("digest", ["", "#", "#sha256:12", "#" + DIGEST[7:]])
def test_a_source_without_a_digest_is_unknown(digest):
    assert f"hf://my-team/b@main{digest}" not in KnownAdapters(LISTED, parse_prefixes(PREFIXES))


@pytest.mark.parametrize("prefix", ["hf://my-team", "https://example.com", "hf://", "https://", "http://a/", "/a/"])
def test_prefixes_end_where_a_name_ends(prefix):
    with pytest.raises(AdapterError, match="ADAPTER_SOURCES"):
        parse_prefixes(prefix)
