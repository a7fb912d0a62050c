"""A profile says how a model is asked and answers; a wrong one is an error that says what is right."""

import json

import pytest

from honeycomb.profile import Profile, ProfileError

GOOD = {"name": "my-model", "prompt": "columns-first", "surface": "json"}


def write(folder, content):
    path = folder / "profile.json"
    path.write_text(content)
    return path


def test_a_profile_is_read_and_cannot_change(tmp_path):
    profile = Profile.load(write(tmp_path, json.dumps(GOOD)))
    assert profile == Profile(name="my-model", prompt="columns-first", surface="json")
    with pytest.raises(ValueError, match="frozen"):
        profile.name = "other"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (json.dumps(GOOD | {"surface": "yaml"}), "'json' or 'python-repr'"),
        (json.dumps(GOOD | {"prompt": "poem"}), "'question-first' or 'columns-first'"),
        (json.dumps(GOOD | {"extra": 1}), "extra"),
        (json.dumps({"name": "x"}), "surface"),
        ("[]", "columns-first"),
        ("not json", "Invalid JSON"),
    ],
)
def test_a_wrong_profile_says_what_is_wrong(tmp_path, content, named):
    path = write(tmp_path, content)
    with pytest.raises(ProfileError) as caught:
        Profile.load(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_a_missing_profile_names_its_path(tmp_path):
    with pytest.raises(ProfileError, match=r"absent\.json: cannot read the model's profile: No such file"):
        Profile.load(tmp_path / "absent.json")
