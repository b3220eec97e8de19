"""docker-compose.yml, its Dockerfile and its variables, as far as they can be checked without containers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from strandline.access.rights import GATEWAY_PAGES, REST_OPERATIONS, RequiredRight
from strandline.ingest.registry import own_gateways
from strandline.services.control import ControlSettings
from tests.support.settings_classes import all_settings
from tests.support.waiting import stretched

ROOT = Path(__file__).parents[2]
FILES = ("docker-compose.yml", "docker-compose.host.yml", "docker-compose.pages.yml")
COMPOSE, HOST, PAGES = ((ROOT / name).read_text(encoding="utf-8") for name in FILES)
DOCUMENT: dict[str, Any] = yaml.safe_load(COMPOSE)
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
GATEWAY_MODULES = {gateway.module for gateway in own_gateways().values()}
GATEWAYS = {
    name
    for name, service in SERVICES.items()
    if any("strandline.ingest." in part for part in service.get("command", []))
}
OURS = [name for name, service in SERVICES.items() if "build" in service]
# ${NAME:-default}, and not the $$ that stands for a dollar sign.
VARIABLES = dict(re.findall(r"(?<!\$)\$\{(\w+):-([^}]*)\}", COMPOSE + HOST + PAGES))
ONE_SHOTS = {name for name, service in SERVICES.items() if service.get("restart") == "no"}
LASTING = {name: service for name, service in SERVICES.items() if name not in ONE_SHOTS}

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=list(SERVICES))
each_lasting_service = pytest.mark.parametrize("service", LASTING.values(), ids=list(LASTING))


def tagged(name: str) -> str:
    """The image of a service without its digest."""
    image: str = SERVICES[name]["image"]
    return image.split("@")[0]


def test_the_parts_of_the_platform_are_there():
    assert set(SERVICES) >= {"kafka", "elasticsearch", "kibana", "mosquitto", "postgres", "control", "control-2"}
    assert {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service} == {
        "kibana": ["kibana"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
        "demo": ["demo"],
    }


def test_each_gateway_is_a_service():
    assert {SERVICES[name]["command"][-1] for name in GATEWAYS} == GATEWAY_MODULES


@each_service
def test_images_are_pinned_to_a_whole_version(service):
    assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+(\.\d+)?(-[a-z]+)?(@sha256:[0-9a-f]{64})?", service["image"])


def test_elasticsearch_and_kibana_are_of_one_version():
    assert tagged("elasticsearch").split(":")[1] == tagged("kibana").split(":")[1]


def test_servers_are_of_the_versions_of_the_embedded_stack():
    embedded = {path.stem for path in (ROOT / "strandline/services/embedded").glob("*.txt")}
    assert {tagged(name).split("/")[-1].replace(":", "-") for name in ("kafka", "elasticsearch")} <= embedded


@each_lasting_service
def test_every_service_says_when_it_is_healthy(service):
    health = service["healthcheck"]
    assert health["test"][0] in ("CMD", "CMD-SHELL")
    assert set(health) >= {"interval", "timeout", "retries", "start_period"}


@each_service
def test_ports_are_published_on_loopback_only(service):
    for port in service.get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{\w+:-\d+\}:\d+(/udp)?", port)


@each_service
def test_memory_is_limited_and_several_stacks_can_run_side_by_side(service):
    assert "mem_limit" in service
    assert "container_name" not in service


def test_the_docs_tell_the_sum_of_the_limits():
    """The sum of the services that stay up. A service that ends frees its memory."""
    gibibytes = 0.0
    for service in LASTING.values():
        number, unit = re.fullmatch(r"(?:\$\{\w+:-)?(\d+)([mg])\}?", service["mem_limit"]).groups()
        gibibytes += int(number) / {"m": 1024, "g": 1}[unit]
    (told,) = re.findall(r"add up to ([\d.]+) GiB", (ROOT / "docs/compose.md").read_text(encoding="utf-8"))
    assert told == f"{gibibytes:.1f}"


@each_service
def test_what_a_service_needs_is_ready_before_it_starts(service):
    for needed, how in service.get("depends_on", {}).items():
        assert how == {"condition": "service_completed_successfully" if needed in ONE_SHOTS else "service_healthy"}
        assert SERVICES[needed].get("profiles") in (None, service.get("profiles"))


@pytest.mark.parametrize("name", sorted(ONE_SHOTS))
def test_what_runs_to_its_end_is_waited_for_by_something_that_stays(name):
    """`up --wait` takes the end of any other service for a failure: https://github.com/docker/compose/issues/10596."""
    assert any(name in service.get("depends_on", {}) for service in LASTING.values())


@each_service
def test_data_lies_in_named_volumes(service):
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert source in DOCUMENT["volumes"] or (ROOT / source).is_file()


@pytest.mark.parametrize("name", sorted(GATEWAYS | {"control", "control-2"}))
def test_each_writer_has_a_volume_and_a_host_name_of_its_own(name):
    service = SERVICES[name]
    assert f"{name}-data:/var/lib/strandline" in service["volumes"]
    assert service["hostname"] == name


def test_every_variable_has_its_default_in_the_example_of_env():
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    assert dict(line.split("=", 1) for line in lines if line and not line.startswith("#")) == VARIABLES
    for text in (COMPOSE, HOST, PAGES):
        assert len(re.findall(r"(?<!\$)\$\{", text)) == len(re.findall(r"(?<!\$)\$\{\w+:-", text)), "no default"


def test_no_password_stands_in_the_files():
    for text in (COMPOSE, HOST, PAGES, (ROOT / ".env.example").read_text(encoding="utf-8")):
        assert not re.search(r"PASSWORD(?!_{1,2}FILE)", text)
    url = make_url(SERVICES["control"]["environment"]["STRANDLINE_LEDGER_URL"])
    assert url.password is None
    assert dict(url.query) == {"passfile": "/secrets/pgpass"}


@pytest.mark.guarantee(
    "G797",
    "`docker-compose.yml` publishes no service that has no login and answers under any `Host` header.",
    promise="each-operation-requires-its-right",
)
def test_no_service_is_published_that_has_no_login_and_answers_under_any_host_name():
    """Web pages could use it by DNS rebinding. Only the file that says so publishes it, on loopback."""
    without_login = {"elasticsearch", "kibana", "prometheus"}
    published = {
        name for text in (COMPOSE, HOST) for name, one in yaml.safe_load(text)["services"].items() if "ports" in one
    }
    assert without_login <= SERVICES.keys() and without_login & published == set()
    pages = yaml.safe_load(PAGES)["services"]
    assert set(pages) == without_login and all(set(one) == {"ports"} for one in pages.values())
    assert all(re.fullmatch(r"127\.0\.0\.1:\$\{\w+:-(\d+)\}:\1", *one["ports"]) for one in pages.values())
    assert "DNS rebinding" in PAGES


def test_kafka_and_the_ledger_are_reached_from_inside_only():
    assert {name for name, service in SERVICES.items() if "edge" not in service.get("networks", [])} == {
        "secrets",
        "setup",
        "kafka",
        "postgres",
    }
    inner = {name for name, network in DOCUMENT["networks"].items() if network.get("internal")}
    assert set(DOCUMENT["networks"]) - inner == {"edge"}
    assert all("edge" in service["networks"] for service in SERVICES.values() if "ports" in service)


@each_lasting_service
def test_two_services_that_speak_share_a_network(service):
    for needed in service.get("depends_on", {}):
        if needed not in ONE_SHOTS:
            assert set(service["networks"]) & set(SERVICES[needed]["networks"])


def test_kafka_makes_no_topic_by_itself_and_has_an_inner_and_a_host_listener():
    environment = SERVICES["kafka"]["environment"]
    assert environment["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    assert environment["KAFKA_UNCLEAN_LEADER_ELECTION_ENABLE"] == "false"
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == "INNER://kafka:19092,HOST://127.0.0.1:${KAFKA_PORT:-9092}"


@pytest.mark.parametrize("name", ["control", "control-2", "setup", *sorted(GATEWAYS)])
def test_our_services_are_given_settings_that_exist(name):
    known = {f"STRANDLINE_{field.upper()}" for settings in all_settings() for field in settings.model_fields}
    environment = SERVICES[name]["environment"]
    assert set(environment) <= known
    bootstrap, url = environment["STRANDLINE_KAFKA_BOOTSTRAP"], environment["STRANDLINE_ELASTICSEARCH_URL"]
    assert (bootstrap, url) == ("kafka:19092", "http://elasticsearch:9200")


def test_gateways_answer_under_the_names_of_their_services_whatever_their_containers_are_called():
    for name in sorted(GATEWAYS):
        names = json.loads(SERVICES[name]["environment"]["STRANDLINE_GATEWAY_NAMES"])
        assert set(names) == GATEWAYS


def test_the_control_service_accepts_the_name_under_which_the_demo_calls_it(monkeypatch):
    for name, value in SERVICES["control"]["environment"].items():
        monkeypatch.setenv(name, re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value))
    assert "control" in ControlSettings().control_names
    assert SERVICES["demo"]["environment"]["STRANDLINE_URL"] == "http://control:8080"


def test_every_service_of_ours_asks_for_logins_when_the_file_is_told_to_and_health_checks_need_none():
    asking = {
        name for name in OURS if SERVICES[name]["environment"].get("STRANDLINE_AUTH") == "${STRANDLINE_AUTH:-none}"
    }
    assert asking == set(OURS) - {"demo"}, "the demo makes no requests, and gets some"
    assert SERVICES["demo"]["environment"]["STRANDLINE_TOKEN"] == "${DEMO_TOKEN:-}"
    pages = {page for name in OURS for page in re.findall(r":\d+(/\w+)'", str(SERVICES[name].get("healthcheck")))}
    assert pages == {"/readyz"}
    assert REST_OPERATIONS["GET /readyz"] is GATEWAY_PAGES["GET /readyz"] is RequiredRight.OPEN


@pytest.mark.guarantee(
    "G192",
    "A process that crashes or remains in a container of `docker-compose.yml` disturbs no other service there.",
    promise="a-stack-keeps-its-data",
)
@each_lasting_service
def test_an_init_adopts_what_nobody_waits_for(service):
    """PostgreSQL takes it for a crash when any child of its own fails; other servers would keep it as a zombie."""
    brings_its_own = service["image"].split(":")[0] in ("elasticsearch", "kibana")
    assert service["init"] is not brings_its_own


@each_service
def test_services_have_no_more_rights_than_they_need(service):
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert "pids_limit" in service


def test_only_what_makes_the_secrets_runs_as_root_and_only_elasticsearch_may_write_beside_its_data():
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^USER (\w+)$", dockerfile, re.MULTILINE)[-1] != "root"
    users = {name: service.get("user") for name, service in SERVICES.items() if name not in OURS}
    assert {name for name, user in users.items() if user in (None, "0:0")} == {"secrets"}
    assert {name for name, service in SERVICES.items() if "cap_add" in service} == {"secrets"}
    assert {name for name, service in SERVICES.items() if not service.get("read_only")} == {"elasticsearch"}


@pytest.mark.guarantee("G796")
def test_the_image_is_built_from_the_locked_dependencies_and_what_it_copies_is_sent():
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for command in re.findall(r"pip install (.+?)(?: \\)?$", dockerfile, re.MULTILINE):
        assert command.startswith("--require-hashes ") or command == "--no-deps --no-build-isolation .", command
    assert dockerfile.count("--require-hashes --requirement requirements") == 2
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    sources = {source for line in copied for source in line.split()}
    assert sources == sent
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed: not checked by it")
@pytest.mark.parametrize(
    "profiles", [[], ["demo"], ["kibana"], ["monitoring"], ["demo", "kibana", "monitoring"]], ids=" ".join
)
@pytest.mark.parametrize("files", [FILES[:1], FILES], ids=len)
def test_docker_compose_accepts_it(files, profiles):
    arguments = [f"--file={name}" for name in files] + [f"--profile={name}" for name in profiles]
    command = ["docker-compose", *arguments, "config", "--quiet"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=stretched(60))
    assert answer.returncode == 0, answer.stderr
