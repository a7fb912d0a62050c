"""What the recipes for Docker and Kubernetes name exists: files, settings, ports, paths, services.

No Docker daemon and no cluster is needed; `kubectl kustomize`, where it is installed, renders the manifests.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.probes import PROBES
from gateway.settings import GatewaySettings
from serving.config import Settings

ROOT = Path(__file__).resolve().parents[2]
DOCKER, KUBERNETES = ROOT / "deploy" / "docker", ROOT / "deploy" / "kubernetes"
KNOWN_SETTINGS = {name.upper() for name in Settings.model_fields} | {
    f"GATEWAY_{name.upper()}" for name in GatewaySettings.model_fields
}


def instructions(name: str) -> Iterator[list[str]]:
    text = (DOCKER / "Dockerfile").read_text()
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith(f"{name} "):
            yield shlex.split(line.removeprefix(name))


def compose() -> dict[str, Any]:
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    files = [KUBERNETES / name for name in ("model.yaml", "gateway.yaml")]
    found = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def container(kind: str, name: str) -> dict[str, Any]:
    return manifests()[kind, name]["spec"]["template"]["spec"]["containers"][0]


def test_copied_files_exist() -> None:
    for *sources, _ in instructions("COPY"):
        assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_environment_is_made_of_the_files_that_are_copied_first(tmp_path: Path) -> None:
    """The layer of the environment has only a part of the code; this part must be enough for its command."""
    *first, everything = instructions("COPY")
    assert everything == [".", "."]
    for *sources, target in first:
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, tmp_path / target)
            else:
                (tmp_path / target).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, tmp_path / target)
    command = next(one for one in instructions("RUN") if one[0] == "python")[2]
    imports = command.partition(";")[0]
    code = f"{imports}\nfrom pipeline.environment import install\nprint(installed_environment.__module__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", "pipeline.environment.enter\n")


def test_settings_of_compose_are_settings() -> None:
    services = compose()["services"]
    given = {name: value for service in services.values() for name, value in service["environment"].items()}
    assert given.keys() <= KNOWN_SETTINGS
    upstreams = re.findall(r"http://([\w-]+):(\d+)", services["gateway"]["environment"]["GATEWAY_UPSTREAMS"])
    assert {name for name, _ in upstreams} == services.keys() - {"gateway"}
    assert {port for _, port in upstreams} == {services["model-0"]["command"][-1]}
    assert services["gateway"]["ports"] == ["127.0.0.1:8080:8080"], "only this machine calls it unless told otherwise"
    assert (DOCKER / services["model-0"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / services["model-0"]["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize(("kind", "name"), [("StatefulSet", "model"), ("Deployment", "gateway")])
def test_a_workload_is_selected_by_itself_and_its_service(kind: str, name: str) -> None:
    spec = manifests()[kind, name]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    service = manifests()["Service", name]["spec"]
    assert service["selector"] == labels
    one = container(kind, name)
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    for port in service["ports"]:
        assert port.get("targetPort", port["port"]) in {*ports, *ports.values()}
    assert str(next(iter(ports.values()))) == one["args"][-1]
    assert {env["name"] for env in one["env"]} <= KNOWN_SETTINGS
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in one["volumeMounts"]} == volumes


def test_the_gateway_has_the_address_of_every_server() -> None:
    servers = manifests()["StatefulSet", "model"]["spec"]
    env = {one["name"]: one["value"] for one in container("Deployment", "gateway")["env"]}
    port = manifests()["Service", "model"]["spec"]["ports"][0]["port"]
    wanted = [f"http://model-{number}.{servers['serviceName']}:{port}" for number in range(servers["replicas"])]
    assert env["GATEWAY_UPSTREAMS"].split(",") == wanted


def test_probes_ask_for_what_is_served() -> None:
    gateway = container("Deployment", "gateway")
    assert {gateway[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")} <= set(PROBES.prefixes)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        code = container("StatefulSet", "model")[probe]["exec"]["command"][-1]
        compile(code, probe, "exec")
        assert "/health-check" in code


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_renders_all_manifests() -> None:
    done = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rendered = list(yaml.safe_load_all(done.stdout))
    assert {(one["kind"], one["metadata"]["name"]) for one in rendered} == manifests().keys()
    assert "image: my-model\n" not in done.stdout, "the image's name is set in one place"
