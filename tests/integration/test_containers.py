"""docker-compose.yml is run without a container engine.

Every service that is available here runs in its own namespaces and control groups. The images are our Dockerfile's,
and replacements for the others. docs/compose.md says what this is and is not.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from strandline.log.admin import KafkaAdmin
from tests.support.containers.compose import FILES, ROOT, read
from tests.support.containers.deployment import Deployment, provide_images
from tests.support.containers.machine import missing
from tests.support.containers.senders import DOCUMENT, STREAM, Senders
from tests.support.waiting import stretched, wait_until

NOT_RUN = {"kibana", "grafana"}
"""Services for which neither Debian nor the embedded stack has a replacement."""
ONE_SHOTS = ["secrets", "setup"]
GATEWAYS = {
    "gateway-http": 8081,
    "gateway-mqtt": 8084,
    "gateway-udp": 8085,
    "gateway-tcp": 8087,
    "gateway-poll": 8088,
    "gateway-mqtt-listener": 8086,
}
"""And the port of its pages."""
LASTING = ["kafka", "elasticsearch", "postgres", "mosquitto", "control", "control-2", *GATEWAYS, "prometheus"]
PORTS = {
    "kafka": 19092,
    "elasticsearch": 9200,
    "postgres": 5432,
    "mosquitto": 1883,
    "control": 8080,
    "prometheus": 9090,
} | GATEWAYS
EXAMPLE = (ROOT / "strandline/example/turbines.yaml").read_text(encoding="utf-8")
INDEX = "http://127.0.0.1:9200/turbine-minute"
API = "http://127.0.0.1:8080"
BASE_MS = 1_760_000_400_000
TURBINES = 2
STEP_MS = 10_000
RECORDS = 30
JOB_TIMEOUT_S = 900
KILLED = 137
TERMINATED = 143

pytestmark = [
    pytest.mark.long,
    pytest.mark.in_order,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(bool(missing()), reason=f"docker-compose.yml was NOT run: {missing()}"),
]


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    project = read(("demo", "kibana", "monitoring"), files=(FILES[0], "docker-compose.pages.yml"))
    images = provide_images(project, set(project.services) - NOT_RUN)
    with Deployment(project, images, Path(tempfile.mkdtemp(prefix="strandline-compose-", dir="/tmp"))) as made:
        yield made


@pytest.fixture(scope="module")
def senders(deployment: Deployment) -> Senders:
    return Senders(deployment)


@pytest.fixture(scope="module")
def farm(deployment: Deployment) -> Farm:
    return Farm(deployment)


class Farm:
    """Turbines of the example that report every 10 s of event time, by HTTP."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.minutes = 0

    def report(self, minutes: int) -> None:
        """Returns when all of these minutes are acknowledged."""
        first = BASE_MS + self.minutes * 60_000
        lines = [
            json.dumps({"turbine": f"T{n}", "site_id": "one", "ts": ts, "state": "run", "power": 1500, "wind": 9.5})
            for ts in range(first, first + minutes * 60_000, STEP_MS)
            for n in range(TURBINES)
        ]
        url = "http://127.0.0.1:8081/v1/streams/turbines/records"
        answer = wait_until(
            lambda: post(self._deployment, url, "\n".join(lines)),
            lambda answer: answer.status_code != 503,
            "taken",
            poll_s=1,
        )
        assert (answer.status_code, answer.json()) == (200, {"accepted": len(lines)}), answer.text
        self.minutes += minutes


def post(deployment: Deployment, url: str, content: str, kind: str = "application/x-ndjson") -> httpx.Response:
    """Send as a program on the machine of the containers does, through the published ports."""
    with deployment.machine.network():
        return httpx.post(url, content=content, headers={"Content-Type": kind}, timeout=120, trust_env=False)


def get(deployment: Deployment, url: str) -> Any:
    with deployment.machine.network():
        answer = httpx.get(url, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()


def strandline(deployment: Deployment, *arguments: str, given: str = "") -> str:
    """The command line in the first control service's container, as docs/compose.md says it."""
    control = deployment.containers["control"]
    return control.execute("strandline", *arguments, "--url", API, given=given, timeout_s=JOB_TIMEOUT_S)


def metrics(deployment: Deployment, gateway: str) -> list[str]:
    page = f"r.urlopen('http://127.0.0.1:{GATEWAYS[gateway]}/metrics').read().decode()"
    container = deployment.containers[gateway]
    return container.execute("python", "-c", f"import urllib.request as r; print({page})").splitlines()


def spooled(deployment: Deployment, gateway: str) -> int:
    counts = [line for line in metrics(deployment, gateway) if line.startswith("strandline_ingest_spool_records")]
    return int(sum(float(line.split()[-1]) for line in counts))


def closed(deployment: Deployment) -> set[str]:
    """The gateways that do not take records for our stream yet."""
    empty = post(deployment, f"http://127.0.0.1:8081/v1/streams/{STREAM}/records", "")
    listener = deployment.containers["gateway-mqtt-listener"].log.read_text()
    names = {"gateway-http"} if empty.status_code == 404 else set()
    names |= set() if f'"streams": ["{STREAM}"' in listener else {"gateway-mqtt-listener"}
    return names | {
        name
        for name in ("gateway-mqtt", "gateway-udp", "gateway-tcp")
        if not any(
            line.startswith("strandline_ingest_open{") and f'stream="{STREAM}"' in line and line.endswith(" 1.0")
            for line in metrics(deployment, name)
        )
    }


def logged(deployment: Deployment) -> list[str]:
    """Return the records of our stream that are in the log."""
    program = (ROOT / "tests/support/containers/read_topic.py").read_text(encoding="utf-8")
    values = deployment.containers["control"].execute("python", "-", "kafka:19092", STREAM, given=program)
    return list(json.loads(values))


def test_with_the_second_file_programs_on_the_machine_reach_kafka_and_postgresql() -> None:
    project = read(files=FILES)
    images = provide_images(project, ["secrets", "kafka", "postgres"])
    directory = Path(tempfile.mkdtemp(prefix="strandline-compose-", dir="/tmp"))
    with Deployment(project, images, directory) as deployment:
        deployment.up("kafka", "postgres")
        password = (directory / "volumes/postgres-secrets/password").read_text()
        with deployment.machine.network():
            KafkaAdmin("127.0.0.1:9092", timeout_s=60).check_writable()
            url = f"postgresql://strandline:{password}@127.0.0.1:5432/strandline"
            with psycopg.connect(url, connect_timeout=60) as connection:
                assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(url.replace(password, "wrong"), connect_timeout=60)


def test_all_start_in_the_order_of_the_file_and_their_own_checks_find_them_healthy(deployment: Deployment) -> None:
    deployment.up(*LASTING)
    assert all(deployment.containers[name].is_healthy for name in LASTING)
    assert set(deployment.containers) == {*LASTING, *ONE_SHOTS}


@pytest.mark.parametrize("name", LASTING)
def test_each_has_the_user_the_rights_and_the_bounds_that_the_file_gives(deployment: Deployment, name: str) -> None:
    container, service = deployment.containers[name], deployment.project.services[name]
    groups = "/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids/pids.max"
    told = container.execute("sh", "-c", f"cat /proc/1/status {groups}; hostname; grep ' / / ' /proc/self/mountinfo")
    lines = told.splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    *_, memory, processes, hostname, root = lines
    user = service.user.split(":")[0] or "10001"
    assert set(status["Uid"].split()) == {user}
    assert {status[f"Cap{kind}"] for kind in ("Eff", "Prm", "Bnd", "Inh", "Amb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert (int(memory), int(processes)) == (service.memory_bytes, service.processes)
    assert hostname == service.hostname or not service.hostname
    assert root.split()[5].startswith("ro" if service.is_read_only else "rw")


@pytest.mark.parametrize("name", LASTING)
def test_each_reaches_those_that_share_a_network_with_it_and_no_other(deployment: Deployment, name: str) -> None:
    services = deployment.project.services
    tries = []
    for other, port in PORTS.items():
        if other != name:
            address = deployment.networks.address(other, services[other].networks[0])
            shared = [network for network in services[other].networks if network in services[name].networks]
            # By its name where there is one; where there should be none, by its address.
            place = other if shared else address
            tries.append(f"timeout 5 bash -c '</dev/tcp/{place}/{port}' 2> /dev/null && echo {other}")
    reached = deployment.containers[name].execute("bash", "-c", "; ".join([*tries, "true"])).split()
    own = set(services[name].networks)
    assert set(reached) == {other for other in PORTS if other != name and own & set(services[other].networks)}


@pytest.mark.guarantee("G192")
@pytest.mark.parametrize("name", LASTING)
def test_what_is_left_of_a_check_that_was_killed_neither_stays_nor_disturbs_the_service(
    deployment: Deployment, name: str
) -> None:
    """An orphan that dies by a signal: PostgreSQL would take it for a crashed child of its own, and break off all connections."""
    container = deployment.containers[name]
    first = container.log.stat().st_size
    container.execute("sh", "-c", "sh -c 'kill -KILL $$' & exit 0")
    wait_until(
        lambda: container.execute("sh", "-c", "cat /proc/[0-9]*/stat 2> /dev/null; true"),
        lambda told: ") Z 1 " not in told,
        "reaped",
    )
    assert "terminated by signal" not in container.log.read_text(errors="replace")[first:]


def test_what_runs_to_its_end_at_each_start_changes_nothing_the_second_time(deployment: Deployment) -> None:
    before = deployment.containers["control"].execute("cat", "/secrets/pgpass")
    for name in ONE_SHOTS:
        container = deployment.containers[name]
        container.make()
        container.start()
        assert container.wait(stretched(120)) == 0, container.tail()
    assert deployment.containers["control"].execute("cat", "/secrets/pgpass") == before


def test_both_control_services_answer_and_a_record_of_each_protocol_gets_into_the_log(
    deployment: Deployment, senders: Senders, farm: Farm
) -> None:
    strandline(deployment, "apply", "/dev/stdin", given=f"{DOCUMENT}---\n{EXAMPLE}")
    for port in (8080, 8090):
        jobs = get(deployment, f"http://127.0.0.1:{port}/v1/jobs")
        assert [job["name"] for job in jobs["jobs"]] == ["turbine-health"]
    wait_until(lambda: closed(deployment), lambda names: not names, "open at every gateway", stretched(60), poll_s=1)
    senders.send(RECORDS)
    farm.report(20)
    wait_until(lambda: len(logged(deployment)), lambda n: n >= 5 * RECORDS, "all in the log", stretched(120), poll_s=2)


@pytest.mark.guarantee("G191")
def test_what_the_gateways_spool_while_kafka_is_stopped_outlives_their_containers(
    deployment: Deployment, senders: Senders
) -> None:
    assert deployment.containers["kafka"].stop() == TERMINATED
    senders.send(RECORDS)
    # The bridge leaves with the broker what it can't persist, and the stream names nothing that could be polled.
    holders = [name for name in GATEWAYS if name not in {"gateway-mqtt", "gateway-poll"}]
    for name in holders:
        wait_until(
            lambda name=name: spooled(deployment, name),
            lambda n: n == RECORDS,
            f"spooled by {name}",
            stretched(60),
            poll_s=1,
        )
    for name in GATEWAYS:
        container = deployment.containers[name]
        assert container.stop() == 0
        container.make(hostname=f"{name}-made-anew")
        container.start()
    deployment.containers["kafka"].start()
    deployment.await_health("kafka", *GATEWAYS)
    for name in holders:
        wait_until(
            lambda name=name: spooled(deployment, name),
            lambda n: n == 0,
            f"drained by {name}",
            stretched(120),
            poll_s=1,
        )
    acknowledged = {record for records in senders.acknowledged.values() for record in records}
    wait_until(
        lambda: {*acknowledged, *senders.sent_by_udp} - set(logged(deployment)), lambda lost: not lost, "all in the log",
        stretched(120), poll_s=2,
    )  # fmt: skip


@pytest.mark.parametrize("name", LASTING)
def test_each_may_be_restarted_and_made_anew(deployment: Deployment, senders: Senders, farm: Farm, name: str) -> None:
    """Each service ends by itself within its time, becomes healthy again, and continues."""
    assert deployment.restart(name) != KILLED
    senders.send(1)
    farm.report(5)
    assert deployment.recreate(name, hostname=f"{name}-another") != KILLED
    deployment.await_health(*LASTING)
    senders.send(1)
    farm.report(5)


@pytest.mark.guarantee("G191")
def test_all_that_was_acknowledged_is_in_the_log_once(deployment: Deployment, senders: Senders) -> None:
    """A record that came through the broker can be there twice.

    The broker sends a message again if it received no acknowledgement.
    """
    expected = {record for records in senders.acknowledged.values() for record in records} | set(senders.sent_by_udp)
    found = wait_until(
        lambda: Counter(logged(deployment)),
        lambda found: expected <= set(found),
        "all in the log",
        stretched(120),
        poll_s=2,
    )
    assert set(found) == expected
    assert not {record for record, times in found.items() if times > 1} - set(senders.acknowledged["bridge"])


@pytest.mark.guarantee("G191")
def test_the_results_of_the_examples_job_are_right(deployment: Deployment, farm: Farm) -> None:
    """Whatever was restarted meanwhile: each turbine's minutes are there once, with six records each."""
    strandline(deployment, "job", "stop", "turbine-health", "--drain", "--timeout", str(JOB_TIMEOUT_S - 60))
    post(deployment, f"{INDEX}/_refresh", "", "application/json")
    query = json.dumps({"size": 0, "track_total_hits": True, "aggs": {"n": {"stats": {"field": "n"}}}})
    answer = post(deployment, f"{INDEX}/_search", query, "application/json").json()
    assert answer["hits"]["total"]["value"] == farm.minutes * TURBINES
    assert (answer["aggregations"]["n"]["min"], answer["aggregations"]["n"]["max"]) == (6, 6)


def test_both_control_services_answer_in_the_end_and_prometheus_sees_all(deployment: Deployment) -> None:
    for port in (8080, 8090):
        jobs = get(deployment, f"http://127.0.0.1:{port}/v1/jobs")
        assert [(job["name"], job["state"]) for job in jobs["jobs"]] == [("turbine-health", "drained")]
    targets = wait_until(
        lambda: get(deployment, "http://127.0.0.1:9090/api/v1/targets?state=active")["data"]["activeTargets"],
        lambda targets: {target["health"] for target in targets} == {"up"},
        "all up",
        stretched(60),
        poll_s=2,
    )
    assert {target["labels"]["instance"].split(":")[0] for target in targets} == {"control", "control-2", *GATEWAYS}


def test_the_example_runs_in_its_container_and_ends_by_itself(deployment: Deployment) -> None:
    deployment.up("demo")
    assert deployment.restart("demo") == 0
    assert deployment.recreate("demo") == 0
