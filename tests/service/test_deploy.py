"""The files of ``deploy/``: parsed, linted, and compared with what the service really has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT
from service_faults import open_service

for package in ("fastapi", "prometheus_client", "tyro", "uvicorn", "yaml"):
    pytest.importorskip(package)

import yaml  # noqa: E402
from web_client import serving  # noqa: E402

from ocar_lab.cli.arguments import parse  # noqa: E402
from ocar_lab.cli.serve import LOOPBACK, Options  # noqa: E402

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
NAME = re.compile(r"\b(?:ocar|process)_[a-z_]+\b")


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def run(*words: str) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def exprs(value: Any) -> Iterator[str]:
    """All queries in a dashboard or a file of alerts."""
    if isinstance(value, dict):
        yield from (value["expr"] for _ in [0] if "expr" in value)
        for each in value.values():
            yield from exprs(each)
    elif isinstance(value, list):
        for each in value:
            yield from exprs(each)


def test_dashboard_and_alerts_ask_for_metrics_that_there_are(tmp_path: Path) -> None:
    with serving(partial(open_service, tmp_path)) as client:
        for name in (1, 2):
            client.learn(name)
        client.post("/predict", x=[[0] * 16])
        client.running.service().flush()
        exported = client.values()
    names = {name for name, _ in exported}
    asked = [*exprs(read("grafana/dashboards/ocar.json")), *exprs(read("alerts.yml"))]
    assert len(asked) > 15
    used = {name for expr in asked for name in NAME.findall(expr)}
    assert used <= names, used - names
    own = {name for name in names if name.startswith("ocar_")}
    shown = {name for name in own if re.sub("_(bucket|count|sum)$", "", name) in plain(used)}
    left = own - shown - {"ocar_build_info", "ocar_accepted_batches", "ocar_memory_limit_samples"}
    assert {name for name in left if not name.endswith("_created")} == set()
    paths = {labels[0] for name, labels in exported if name == "ocar_requests_total"}
    assert set(re.findall('path="(.*?)"', " ".join(asked))) <= paths
    events = {labels[0] for name, labels in exported if name == "ocar_guard_events_total"}
    (wanted,) = re.findall('event=~"(.*?)"', " ".join(asked))
    assert set(wanted.split("|")) <= events


def plain(names: set[str]) -> set[str]:
    return {re.sub("_(bucket|count|sum)$", "", name) for name in names}


def test_the_image_starts_the_service_by_a_command_that_there_is() -> None:
    lines = DOCKERFILE.replace("\\\n", "")
    (command,) = re.findall(r"^CMD (\[.*\])$", lines, flags=re.M)
    options = parse(Options, json.loads(command), command="ocar serve")
    assert options.host not in LOOPBACK
    assert options.token_file is not None
    assert f"EXPOSE {options.port}" in DOCKERFILE
    assert f"VOLUME {options.state}" in DOCKERFILE
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", lines, flags=re.M)
    assert json.loads(entry) == ["ocar", "serve"]
    for word in re.findall(r"^COPY (?!--from)(.*) \S+$", lines, flags=re.M):
        assert all((ROOT / name).exists() for name in word.split())


def test_compose_joins_parts_that_there_are() -> None:
    compose, port = read("compose.yaml"), 8000
    services = compose["services"]
    assert set(services) == {"ocar", "prometheus", "grafana"}
    build = services["ocar"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert (DEPLOY / build["context"] / "pyproject.toml").is_file()
    for service in services.values():
        assert all(each.startswith("127.0.0.1:") for each in service["ports"])
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source != "./model":  # the user's own
                there = (
                    (DEPLOY / source).exists() if "/" in source else source in compose["volumes"]
                )
                assert there, volume
        assert set(service.get("secrets", [])) <= set(compose["secrets"])
    job = read("prometheus.yml")["scrape_configs"][0]
    assert job["static_configs"] == [{"targets": [f"ocar:{port}"]}]
    assert job["authorization"]["credentials_file"] == "/run/secrets/token"
    assert "token" in services["prometheus"]["secrets"]
    (source,) = read("grafana/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    dashboard = read("grafana/dashboards/ocar.json")
    uids = re.findall('"uid": "(.*?)"', json.dumps(dashboard["panels"]))
    assert set(uids) == {source["uid"]}
    (provider,) = read("grafana/dashboards/provider.yml")["providers"]
    mounted = [volume.split(":")[1] for volume in services["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounted
    boxes = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [(x, y) for box in boxes for x in span(box, "x", "w") for y in span(box, "y", "h")]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24


def span(box: dict[str, int], start: str, length: str) -> range:
    return range(box[start], box[start] + box[length])


def test_promtool_accepts_configuration_and_alerts() -> None:
    run("promtool", "check", "config", "--syntax-only", str(DEPLOY / "prometheus.yml"))
    run("promtool", "check", "rules", str(DEPLOY / "alerts.yml"))


def test_hadolint_accepts_the_dockerfile() -> None:
    run("hadolint", str(DEPLOY / "Dockerfile"))
