"""From wrong answers to a promoted version and back: two keys, real Chromium, real Cog servers, a tiny schema task."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from gateway.keys.key_file import KeyFile
from lab.endurance.cog_process import CogServer
from pipeline.improve.lineage import parent_of_used, tree
from pipeline.locking.make_lock import lock_source
from pipeline.package.switch_model import use_weights
from pipeline.paths import ROOT
from pipeline.train.kept import Kept, keep, prepared_from
from serving.weights import WeightsLock
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.open_app import bearer, make_keys
from tests.gateway.pages.conftest import pages_of
from tests.gateway.pages.page_actions import run
from tests.pipeline.prepare.sources import environment, make_sources, prepare

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(3000)]
CITIES = ["York", "Bath"]
WORDS = [a + b + c for a in ("ka", "lo", "mi") for b in ("re", "su", "to") for c in ("na", "po", "qui", "ve", "xa")]
IN_BROWSER = 3
OTHER = {"York": "Bath", "Bath": "York"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that serves `towns`, a random model that answers one of two cities."""
    root = tmp_path_factory.mktemp("loop")
    make_sources(root)
    schema = {"type": "object", "properties": {"city": {"enum": CITIES}}, "required": ["city"]}
    (root / "schema.json").write_text(json.dumps(schema))
    for name in ("cog.yaml", "weights.lock", "predict.py", ".cog/openapi_schema.json"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "models", root / "models")
    done = prepare(root, root / "weights" / "towns", "--unquantized", "--no-drafter", "--keep")
    assert done.returncode == 0, done.stderr[-4000:]
    lock_source(str(root / "weights" / "towns"), root, None, None)
    use_weights(root, "towns")
    return root


@contextmanager
def served(root: Path, name: str, weights: str | None = None) -> Iterator[CogServer]:
    """A server of what the package has, or of other weights."""
    env = {"PYTHONPATH": f"{root}:{ROOT}", "ENGINE": "paged", "NUM_THREADS": "1"}
    if weights is not None:
        env |= {"WEIGHTS_DIR": f"weights/{weights}", "WEIGHTS_LOCK": f"weights/{weights}.lock"}
    log = root / f"{name}.log"
    with CogServer("predict.py:Predictor", env=env, log=log, package=root, setup_seconds=600) as server:
        yield server


class Loop:
    """What the people of this test do with one gateway."""

    def __init__(self, gateway: GatewayServer, open_page: Callable[..., Page]) -> None:
        self.gateway, self._open = gateway, open_page

    def open(self, path: str, key: str) -> Page:
        return self._open(path, extra_http_headers=bearer(key))

    def ask(self, key: str, text: str) -> dict[str, Any]:
        """A prediction that has ended."""
        response = self.gateway.post({**bearer(key), "Prefer": "wait"}, input={"text": text})
        assert response.json()["status"] == "succeeded", response.text
        return dict(response.json())

    def city(self, key: str, text: str) -> str:
        return str(json.loads("".join(self.ask(key, text)["output"]))["city"])

    def corrections(self, key: str) -> list[Mapping[str, Any]]:
        return list(self.gateway.client.get("/v1/corrections", headers=bearer(key)).json()["results"])

    def version(self, key: str) -> str:
        model = self.gateway.client.get("/v1/models/local/test", headers=bearer(key)).json()
        return str(model["latest_version"]["id"])


@contextmanager
def loop(browser: Browser, folder: Path, servers: Path, **settings: object) -> Iterator[Loop]:
    settings = {"SERVERS_FILE": servers, "KEYS": "required", **settings}
    with GatewayServer([], folder, **settings) as gateway, pages_of(browser, gateway) as open_page:
        yield Loop(gateway, open_page)


def serve(servers: Path, root: Path, server: CogServer) -> None:
    """Let the gateway ask this server."""
    (entry,) = WeightsLock.load(root / "weights.lock").weights
    partial = servers.with_suffix(".partial")
    partial.write_text(json.dumps({"upstreams": [server.url], "weights_digest": entry.set_digest}))
    partial.replace(servers)


def correct(page: Page, text: str, wanted: str) -> None:
    """Ask, and say what the right answer is."""
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("text", exact=True).fill(text)
    run(page)
    page.get_by_role("button", name="Correct", exact=True).click()
    page.get_by_label("The right answer").fill(json.dumps({"city": "nowhere"}))
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_label("The right answer").fill(json.dumps({"city": wanted}))
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("dialog")).to_be_hidden()


def improve(root: Path, corrections: Path) -> None:
    words = ["--weights", root / "weights" / "towns", "--out", root / "weights" / "towns-2"]
    # A random model knows nothing, so it cannot be judged by old examples.
    words += ["--corrections", corrections, "--minutes", "1", "--limit", "100"]
    command = [str(ROOT / "scripts" / "improve"), *map(str, words)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_corrected_in_a_browser_improved_shadowed_promoted_and_rolled_back(browser: Browser, root: Path):
    folder, servers = root / "gateway", root / "servers.json"
    folder.mkdir()
    keys = make_keys(folder, "alice", "bob")
    alice, bob = keys["alice"], keys["bob"]
    with closing(KeyFile(folder / "keys.sqlite")) as file:
        admin = file.create("admin", is_admin=True)
    with served(root, "towns") as towns:
        serve(servers, root, towns)
        with loop(browser, folder, servers) as people:
            version = people.version(alice)
            given = {word: people.ask(alice, f"new {word}") for word in WORDS}
            cities = {word: json.loads("".join(one["output"]))["city"] for word, one in given.items()}
            usual = Counter(cities.values()).most_common(1)[0][0]
            wrong = [word for word in WORDS if cities[word] == usual]
            right = OTHER[usual]
            assert len(wrong) >= 20

            page = people.open("/", alice)
            for word in wrong[:IN_BROWSER]:
                correct(page, f"new {word}", right)
            for word in wrong[IN_BROWSER:]:
                body = {"prediction": given[word]["id"], "wanted": {"city": right}}
                answer = people.gateway.client.post("/v1/corrections", json=body, headers=bearer(alice))
                assert answer.status_code == 201, answer.text

            # Nobody but alice and the admin sees them, until one is shared.
            assert (len(people.corrections(alice)), people.corrections(bob)) == (len(wrong), [])
            assert "There are none" in people.open("/corrections", bob).locator("main").inner_text()
            first = people.corrections(alice)[-1]["id"]
            page = people.open("/corrections?state=proposed", admin)
            expect(page.locator(".correction")).to_have_count(len(wrong))
            card = page.locator(f"[data-id='{first}']")
            card.get_by_role("button", name="Share").click()
            expect(card.locator(".tag")).to_have_text("shared")
            page.wait_for_load_state()  # before it the page's script may not listen yet
            card.get_by_role("button", name="Accept").click()
            expect(page.locator(".correction")).to_have_count(len(wrong) - 1)
            for one in people.corrections(admin):
                address = f"/v1/corrections/{one['id']}"
                people.gateway.client.patch(address, json={"state": "accepted"}, headers=bearer(admin))
            assert [one["id"] for one in people.corrections(bob)] == [first]

        # What scripts/train would have kept: old examples that say what is right, as the corrections do.
        data = root / "data"
        data.mkdir()
        for part in ("train", "validation"):
            lines = [{"input": f"old {part} {word}", "output": {"city": right}} for word in WORDS]
            (data / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        weights = root / "weights" / "towns"
        keep(weights, Kept(str(root / "base"), *prepared_from(weights), data))
        improve(root, folder / "corrections.sqlite")

        with served(root, "candidate", "towns-2") as candidate:
            shadow = {"SHADOW": candidate.url, "SHADOW_SHARE": 1, "SHADOW_NAME": "towns-2"}
            with loop(browser, folder, servers, **shadow) as people:
                assert [people.city(alice, f"new {word}") for word in wrong[:5]] == [usual] * 5
                page = people.open("/shadow", alice)
                for _ in range(600):
                    if page.locator(".pair").count():
                        break
                    page.wait_for_timeout(100)
                    page.reload()
                pair = page.locator(".pair").first
                expect(pair.locator(".given")).to_contain_text(usual)
                expect(pair.locator(".answer")).to_contain_text(right)
                expect(people.open("/shadow", bob).locator(".pair")).to_have_count(0)

        with loop(browser, folder, servers) as people, ExitStack() as started:
            for name, wanted in (("towns-2", right), ("towns", usual)):
                use_weights(root, name if name == "towns-2" else parent_of_used(root))
                assert [line.split()[1].rstrip(":") for line in tree(root) if line.startswith("*")] == [name]
                before = people.version(alice)
                serve(servers, root, started.enter_context(served(root, f"promoted-{name}")))
                for _ in range(600):  # each request succeeds meanwhile
                    if people.ask(alice, f"new {wrong[0]}")["version"] != before:
                        break
                answers = Counter(people.city(alice, f"new {word}") for word in wrong)
                assert answers.most_common(1)[0][0] == wanted
            assert people.version(alice) == version and answers == {usual: len(wrong)}
