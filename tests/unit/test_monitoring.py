"""The files of docker/monitoring: what they ask for is exposed, by the services that they name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from strandline.ingest.gateway.metrics import IngestMetrics

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "docker" / "monitoring"
PROMETHEUS: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana" / "strandline.json").read_text())
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_every_service_of_ours_that_has_pages_is_asked_at_the_port_that_its_health_check_uses() -> None:
    asked = {
        tuple(target.rsplit(":", 1))
        for one in PROMETHEUS["scrape_configs"]
        for config in one["static_configs"]
        for target in config["targets"]
    }
    pages = {
        (name, port)
        for name, service in SERVICES.items()
        for port in re.findall(r"127\.0\.0\.1:(\d+)/readyz", str(service.get("healthcheck", {}).get("test")))
    }
    assert asked == pages
    assert len(asked) == 8


def test_the_control_services_answer_under_the_names_by_which_they_are_asked() -> None:
    names = json.loads(SERVICES["control"]["environment"]["STRANDLINE_CONTROL_NAMES"])
    assert set(names) == {name for name in SERVICES if name.startswith("control")}


def test_prometheus_and_grafana_find_their_files() -> None:
    mounts = {target: ROOT / source for source, target, *_ in (v.split(":") for v in _volumes("prometheus", "grafana"))}
    assert mounts["/etc/prometheus/prometheus.yml"] == MONITORING / "prometheus.yml"
    assert [mounts[path] for path in PROMETHEUS["rule_files"]] == [MONITORING / "alerts.yml"]
    provider = yaml.safe_load((MONITORING / "grafana" / "dashboards.yml").read_text())["providers"][0]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert mounts[home] == MONITORING / "grafana" / "strandline.json"
    assert Path(home).parent == Path(provider["options"]["path"])
    (source,) = yaml.safe_load((MONITORING / "grafana" / "datasource.yml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"


def _volumes(*names: str) -> list[str]:
    return [volume for name in names for volume in SERVICES[name]["volumes"]]


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in ALERTS:
        assert set(rule["annotations"]) == {"summary", "remedy"}
        assert rule["labels"]["severity"] in ("warning", "critical")
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)


def test_each_metric_of_the_alerts_and_the_dashboard_is_exposed() -> None:
    queries = [rule["expr"] for rule in ALERTS]
    queries += [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\bstrandline_\w+", query)}
    metrics = IngestMetrics("http")
    metrics.of("readings")
    metrics.show_spools([mock.Mock(records=0, records_in_doubt=0, bytes=0, bytes_max=1)])
    exposed = {family.name for family in metrics.registry.collect()}
    for path in (ROOT / "strandline").rglob("*.py"):
        exposed |= set(re.findall(r'"(strandline_\w+)"', path.read_text()))
    # The name of a family has no `_total` and no `_bucket`.
    exposed |= {f"{name}{suffix}" for name in exposed for suffix in ("_total", "_bucket")}
    assert asked - exposed == set()
    assert {one for one in asked if one.startswith("strandline_notice_")} == {
        "strandline_notice_open_problems",
        "strandline_notice_unsent_messages",
        "strandline_notice_is_failing",
    }


def test_panels_stand_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: the alerts were NOT checked by it"
)
def test_promtool_accepts_the_alerts() -> None:
    ran = subprocess.run(
        ["promtool", "check", "rules", str(MONITORING / "alerts.yml")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert f"{len(ALERTS)} rules found" in ran.stdout


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: the alerts were NOT checked by it"
)
@pytest.mark.parametrize(("reason", "is_alarming"), [("schema", True), ("duplicate", False), ("late", False)])
def test_only_dead_letters_that_somebody_can_list_and_repair_raise_their_alert(
    tmp_path: Path, reason: str, is_alarming: bool
) -> None:
    """Repeats are rejected without a dead letter, and late records have an alert of their own."""
    alert = next(one for one in ALERTS if one["alert"] == "StrandlineDeadLetters")
    told = {
        "exp_labels": {**alert["labels"], "exported_job": "power"},
        "exp_annotations": {
            name: text.replace("{{ $labels.exported_job }}", "power") for name, text in alert["annotations"].items()
        },
    }
    rejected = f'strandline_job_rejected_records_total{{exported_job="power",reason="{reason}"}}'
    case = {
        "interval": "1m",
        "input_series": [
            {"series": rejected, "values": "0+60x20"},
            {"series": 'strandline_job_records_total{exported_job="power"}', "values": "0+600x20"},
        ],
        "alert_rule_test": [
            {"eval_time": "15m", "alertname": alert["alert"], "exp_alerts": [told] if is_alarming else []}
        ],
    }
    (tmp_path / "case.yml").write_text(
        yaml.safe_dump({"rule_files": [str(MONITORING / "alerts.yml")], "tests": [case]})
    )
    ran = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "case.yml")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
