"""Files as inputs, with the official client and without; lists, searches, deployments and accounts."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import pytest
import replicate
from hypothesis import HealthCheck, given, settings, strategies
from replicate.exceptions import ReplicateError

from gateway.predictions.input_files import KEEP_SECONDS, InputFiles, TooManyFilesError
from tests.gateway.fake_cog import FakeCog
from tests.gateway.gateway_server import MODEL, GatewayServer
from tests.gateway.open_app import bearer, create, make_keys, open_app
from tests.gateway.replicate.answers import asked


@pytest.fixture
def client(gateway: GatewayServer) -> Iterator[replicate.Client]:
    client = replicate.Client(base_url=gateway.url, api_token="any", timeout=60)
    with client._client:  # it has no close of its own
        yield client


@pytest.mark.server
def test_the_official_client_sends_a_file_as_an_input(client, tmp_path):
    path = tmp_path / "question.txt"
    path.write_text("how many?")
    with path.open("rb") as file:
        assert asked(client.run(MODEL, input={"nlq": file, "cols": "a,b"})) == "how many?"
    file = client.files.create(path, metadata={"a": "b"})
    assert (file.name, file.size, file.content_type, file.metadata) == ("question.txt", 9, "text/plain", {"a": "b"})
    assert file.id in [one.id for one in client.files.list()]
    assert client.files.get(file.id) == file
    assert asked(client.run(MODEL, input={"nlq": file.urls["get"], "cols": "a,b"})) == "how many?"
    assert client.files.delete(file.id)
    with pytest.raises(ReplicateError, match=f"there is no file {file.id}"):
        client.files.get(file.id)
    with pytest.raises(ReplicateError, match="files expire after a day"):
        client.run(MODEL, input={"nlq": file.urls["get"], "cols": "a,b"})
    image = client.files.create(io.BytesIO(b"\xff\xd8"), filename="a.jpg", content_type="image/jpeg")
    with pytest.raises(ReplicateError, match=r"'a.jpg' is not text in UTF-8"):
        client.run(MODEL, input={"nlq": image.urls["get"], "cols": "a,b"})


@pytest.mark.server
def test_the_official_client_lists_searches_and_gets(client):
    assert [f"{one.owner}/{one.name}" for one in client.models.list()] == [MODEL]
    assert [one.latest_version.id for one in client.models.search("TEST local")]
    assert list(client.models.search("flux")) == []
    deployment = client.deployments.get(MODEL)
    assert deployment.current_release.version == client.models.get(MODEL).latest_version.id
    assert [one.name for one in client.deployments.list()] == ["test"]
    prediction = deployment.predictions.create(input={"nlq": "how many?", "cols": "a,b"})
    prediction.wait()
    assert asked(prediction.output) == "how many?"
    account = client.accounts.current()
    assert (account.type, account.username) == ("user", "local")


@pytest.mark.server
def test_the_official_client_says_what_is_not_served(client):
    for call in (
        lambda: client.deployments.get("other/model"),
        lambda: client.trainings.list(),
        lambda: client.collections.list(),
        lambda: client.hardware.list(),
        lambda: client.deployments.create(
            name="a", model=MODEL, version="b", hardware="cpu", min_instances=0, max_instances=1
        ),
    ):
        with pytest.raises(ReplicateError) as caught:
            call()
        assert caught.value.status in (404, 405)
        assert caught.value.detail


def form(content: bytes, boundary: str = "b0undary", name: str = "content", kind: str = "text/plain") -> bytes:
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="a"\r\nContent-Type: {kind}\r\n\r\n'
    )
    return head.encode() + content + f"\r\n--{boundary}--\r\n".encode()


FORM = {"Content-Type": "multipart/form-data; boundary=b0undary"}
FILE = {"type": "string", "format": "uri"}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(strategies.binary(max_size=300) | strategies.text("\r\n-a\x0b\u2028", max_size=20).map(str.encode))
async def test_an_input_of_a_file_gets_its_bytes(tmp_path_factory, content):
    async with FakeCog(properties={"file": FILE, "files": {"type": "array", "items": FILE}}) as cog:
        async with open_app(tmp_path_factory.mktemp("files"), cog) as client:
            made = await client.post("/v1/files", files={"content": ("a.bin", content, "application/x-own")})
            assert made.status_code == 201, made.text
            address = made.json()["urls"]["get"]
            await create(client, file=address, files=[address, "https://other.example/v1/files/" + "a" * 26])
        [(_, sent)] = cog.requests
        assert sent["input"]["files"][0] == sent["input"]["file"]
        assert sent["input"]["files"][1].startswith("https://other.example/")
        head, _, data = sent["input"]["file"].partition(",")
        assert head == "data:application/x-own;base64"
        assert base64.b64decode(data) == content


@pytest.mark.parametrize(
    ("content", "headers", "status", "text"),
    [
        (b"x", {}, 400, "multipart/form-data"),
        (b"x", FORM, 400, "whose part `content` is the file"),
        (form(b"x", name="file"), FORM, 400, "whose part `content` is the file"),
        (form(b"x", kind="message/rfc822"), FORM, 400, "message/rfc822 cannot be read"),
        (form(b"x" * 200_000), FORM, 413, "limit"),
        (form(b"[1]", name="metadata").replace(b"--b0undary--\r\n", b"") + form(b"x"), FORM, 400, "not a JSON object"),
    ],
)
async def test_what_is_no_file_is_a_problem(tmp_path, content, headers, status, text):
    async with FakeCog() as cog, open_app(tmp_path, cog, max_body_bytes=100_000) as client:
        response = await client.post("/v1/files", content=content, headers=headers)
        assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
        assert text in response.json()["detail"]


async def test_files_belong_to_their_key(tmp_path):
    keys = make_keys(tmp_path, "alice", "bob")
    async with FakeCog() as cog, open_app(tmp_path, cog, keys="required") as client:
        alice, bob = bearer(keys["alice"]), bearer(keys["bob"])
        assert (await client.post("/v1/files", content=form(b"x"), headers=FORM)).status_code == 401
        made = (await client.post("/v1/files", content=form(b"mine"), headers=FORM | alice)).json()
        assert (await client.get(f"/v1/files/{made['id']}", headers=bob)).status_code == 404
        assert (await client.get("/v1/files", headers=bob)).json()["results"] == []
        assert (await client.delete(f"/v1/files/{made['id']}", headers=bob)).status_code == 404
        address = made["urls"]["get"]
        refused = await client.post(
            "/v1/models/local/model/predictions", json={"input": {"text": address}}, headers=bob
        )
        assert (refused.status_code, refused.json()["invalid_fields"][0]["field"]) == (422, "input.text")
        assert (await create(client, alice, text=address))["input"] == {"text": "mine"}
        assert (await client.get("/v1/account", headers=bob)).json()["username"] == "bob"


def test_files_expire_and_are_limited():
    time = 0.0
    files = InputFiles(10, lambda: time)
    alice, bob = files.of("alice"), files.of("bob")
    first = alice.add("a", "text/plain", b"12345", {})
    bob.add("b", "text/plain", b"1234567890", {})  # another's limit
    second = alice.add("a", "text/plain", b"12345", {})
    with pytest.raises(TooManyFilesError, match="your files have 10 bytes and this one 1; the limit is 10"):
        alice.add("a", "text/plain", b"1", {})
    assert alice.all() == [second, first]
    assert alice.delete(first.id)
    assert not alice.delete(first.id)
    time = KEEP_SECONDS
    third = alice.add("a", "text/plain", b"12345", {})
    time += 1
    assert (alice.all(), bob.all()) == ([third], [])
