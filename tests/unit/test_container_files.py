"""The tests read a compose file and a Dockerfile this way when they run them without a container engine."""

from __future__ import annotations

import shutil

import pytest

from tests.support.containers import compose
from tests.support.containers.bundles import Bundle, configuration, user_and_home
from tests.support.containers.dockerfile import Image, Step, parse, with_setting

PASSWD = "root:x:0:0:root:/root:/bin/sh\nours:x:10001:10002::/home/ours:/bin/sh\n"


def test_lines_are_joined_and_comments_left_out() -> None:
    text = "# one\nFROM a AS b\nRUN x \\\n    # why\n    && y\n"
    assert parse(text) == [Step("FROM", "a AS b"), Step("RUN", "x     && y")]


def test_a_variable_takes_what_stood_before_and_an_unknown_word_is_refused() -> None:
    image = with_setting(Image(environment={"PATH": "/bin"}), Step("ENV", 'PATH=/one:$PATH A="b c"'))
    assert image.environment == {"PATH": "/one:/bin", "A": "b c"}
    with pytest.raises(ValueError, match="ADD"):
        with_setting(image, Step("ADD", "x y"))


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("10001", ((10001, 10002), "/home/ours")),
        ("ours:7", ((10001, 7), "/home/ours")),
        ("", ((0, 0), "/root")),
        ("65534:65534", ((65534, 65534), "/")),
        ("999", ((999, 0), "/")),
    ],
)
def test_a_user_is_a_name_or_a_number(user: str, expected: tuple[tuple[int, int], str]) -> None:
    assert user_and_home(user, PASSWD) == expected


def test_what_a_container_may_do_is_what_its_file_says(tmp_path) -> None:
    bundle = Bundle(
        ["x"], {"A": "b"}, (7, 8), read_only=True, tmpfs=["/tmp:size=1m"], capabilities=["CHOWN"], processes=9
    )
    made = configuration(bundle, tmp_path)
    assert made["root"]["readonly"] is True
    assert made["process"]["capabilities"]["bounding"] == ["CAP_CHOWN"]
    assert made["process"]["capabilities"]["effective"] == [], "a process that is not root has none in effect"
    assert made["linux"]["resources"] == {"pids": {"limit": 9}}
    (tmpfs,) = [mount for mount in made["mounts"] if mount["destination"] == "/tmp"]
    assert tmpfs["options"] == ["nosuid", "noexec", "nodev", "size=1m"], "Docker lets nothing be executed there"


def test_a_word_of_a_service_that_the_tests_do_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="privileged"):
        compose._service("one", {"image": "a", "privileged": True})


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed: not read by it")
def test_the_file_is_read_with_its_defaults_and_variables_change_them() -> None:
    services = compose.read(KAFKA_MEMORY="3g").services
    assert (services["kafka"].memory_bytes, services["postgres"].memory_bytes) == (3 << 30, 512 << 20)
    assert services["mosquitto"].health is not None and "'$SYS/broker/version'" in services["mosquitto"].health.test[-1]
    assert services["control"].needs["setup"] == "service_completed_successfully"
    assert services["postgres"].stop_grace_s == 60
