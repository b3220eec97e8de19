"""Limits of what one address, or a client that guesses passwords, can take from the others."""

import pytest

from strandline.ingest.mqtt.addresses import (
    ADDRESS_TRIES,
    FORGOTTEN_S,
    KEYS_MAX,
    PAUSE_S_MAX,
    USER_TRIES,
    WrongPasswords,
    address_of,
)


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def wrong(times: int, clock: Clock, address: str = "192.0.2.1", user: str = "lundy") -> WrongPasswords:
    found = WrongPasswords(clock)
    for _ in range(times):
        found.add(address, user)
    return found


def test_each_wrong_password_after_the_first_few_doubles_the_pause() -> None:
    clock = Clock()
    waits = [wrong(times, clock).wait_s("192.0.2.1", "lundy") for times in range(USER_TRIES - 1, USER_TRIES + 3)]
    assert waits == [0, 1, 2, 4]
    guessed = wrong(40, clock)
    assert guessed.wait_s("192.0.2.1", "lundy") == PAUSE_S_MAX
    clock.now_s += PAUSE_S_MAX
    assert guessed.wait_s("192.0.2.1", "lundy") == 0
    clock.now_s += FORGOTTEN_S
    guessed.add("192.0.2.1", "lundy")
    assert guessed.wait_s("192.0.2.1", "lundy") == 0


@pytest.mark.guarantee("G178")
def test_others_at_the_address_and_the_user_elsewhere_do_not_wait() -> None:
    guessed = wrong(ADDRESS_TRIES - 1, Clock())
    assert guessed.wait_s("192.0.2.1", "skye") == guessed.wait_s("192.0.2.2", "lundy") == 0
    guessed.forget("192.0.2.1", "lundy")
    assert guessed.wait_s("192.0.2.1", "lundy") == 0


def test_an_address_that_tries_many_users_waits_and_what_is_remembered_is_bounded() -> None:
    clock = Clock()
    guessed = WrongPasswords(clock)
    for number in range(KEYS_MAX + 1_000):
        guessed.add("192.0.2.1", f"{number}" * 50_000 if number < 3 else f"{number}")
    assert guessed.wait_s("192.0.2.1", "new") == PAUSE_S_MAX
    assert len(guessed) == KEYS_MAX
    assert max(len(part) for key in guessed._wrong for part in key) <= 64


def test_an_ipv6_client_has_a_whole_network() -> None:
    assert address_of("2001:db8:1:2:3::4") == address_of("2001:db8:1:2::9") != address_of("2001:db8:1:3::9")
    assert address_of("192.0.2.1") == "192.0.2.1"
    assert address_of("unknown") == "unknown"
