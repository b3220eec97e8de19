"""The records of NEXMark, re-implemented from its published descriptions:
`python -m benchmarks.nexmark.generator --records 10000`.

Of each 50 records, one is the registration of a person, then three are new auctions, then 46 are bids. People and auctions are
numbered from 1000. Half of all bids are for a *hot* auction. Three of four bids are of a hot bidder, and three of four auctions
of a hot seller. The others are random: of the last 100 auctions (and ten future ones), or of the last 1,000 people. The
logarithms of prices are uniformly distributed. An auction lasts at most twice as long as the time in which 100 more begin.

Every value is a function of the seed and of the record's number, so the same options give the same bytes on every machine. A
longer run begins with the records of a shorter one; with disorder, the last records can differ.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

START_MS = 1_700_000_000_000
"""A Tuesday evening, 22:13:20 UTC."""
FIRST_ID = 1_000
GROUP, AUCTIONS_A_GROUP = 50, 3
"""Number of records with one person, and the number of auctions among them."""
HOT_EVERY = 100
"""Distance of hot ones: the first auction or seller, or the second bidder, of each hundred."""
AUCTIONS_IN_FLIGHT, AUCTIONS_AHEAD = 100, 10
PEOPLE_ACTIVE, PEOPLE_AHEAD = 1_000, 10
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
PERSON, AUCTION, BID = "person", "auction", "bid"
_BYTES = {PERSON: 200, AUCTION: 500, BID: 100}
"""Average length of a record of each kind, without the names of its fields. The field `extra` is the padding."""

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
_FIRST_NAMES = ("Ada", "Boris", "Clara", "David", "Edith", "Felix", "Grace", "Henri", "Ines", "Jonas", "Kate")
_LAST_NAMES = ("Abel", "Brandt", "Cole", "Diaz", "Evans", "Fischer", "Garcia", "Holm", "Ito")
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     ", np.uint8)
_POOL = 1 << 16
_DRAWS = (
    *("auction_is_hot", "auction", "bidder_is_hot", "bidder", "price", "channel_is_hot", "channel", "url", "id_in_url"),
    *("seller_is_hot", "seller", "category", "reserve", "length", "item", "description", "item_length"),
    *("first_name", "last_name", "email", "card", "city", "state", "extra", "extra_length", "delay"),
)


@dataclass(frozen=True)
class Nexmark:
    """A number of records, in the order of arrival."""

    records: int
    seed: int = 1
    rate: int = 10_000
    """Records per second of event time."""
    start_ms: int = START_MS
    """Event time of the first record."""
    disorder_ms: int = 0
    """Maximum time in ms from the event time of a record to its arrival."""

    @cached_property
    def event_ms(self) -> Numbers:
        """Event time of each record, in the order of the log."""
        return self._made_ms(self._number)

    @cached_property
    def log_ms(self) -> Numbers:
        """Arrival time of each record: not before its event time, and in the order of the log."""
        return np.sort(self._comes_ms(np.arange(self.records, dtype=np.int64)))

    def lines(self) -> list[bytes]:
        """Return each record as a line of JSON."""
        place = self._number % GROUP
        lines: list[bytes] = [b""] * self.records
        for numbers, make in (
            (np.flatnonzero(place == 0), self._people),
            (np.flatnonzero((place > 0) & (place <= AUCTIONS_A_GROUP)), self._auctions),
            (np.flatnonzero(place > AUCTIONS_A_GROUP), self._bids),
        ):
            for at, line in zip(numbers.tolist(), make(self._number[numbers]), strict=True):
                lines[at] = line.encode()
        return lines

    @cached_property
    def _number(self) -> Numbers:
        """Number of each record, from 0, in the order of the log."""
        numbers = np.arange(self.records, dtype=np.int64)
        return np.argsort(self._comes_ms(numbers), kind="stable").astype(np.int64)

    def _comes_ms(self, number: Numbers) -> Numbers:
        return self._made_ms(number) + self._below("delay", number, self.disorder_ms + 1)

    def _made_ms(self, number: Numbers) -> Numbers:
        return self.start_ms + number * 1000 // self.rate

    def _people(self, number: Numbers) -> list[str]:
        first, last = (
            _chosen(names, self._draw(what, number))
            for names, what in ((_FIRST_NAMES, "first_name"), (_LAST_NAMES, "last_name"))
        )
        card = self._below("card", number, 10**16)
        rows = zip(
            *self._head(number), (FIRST_ID + number // GROUP).tolist(), first, last, self._texts("email", number, 7),
            card.tolist(), _chosen(_CITIES, self._draw("city", number)), _chosen(_STATES, self._draw("state", number)),
            self._extras(number, PERSON), strict=True,
        )  # fmt: skip
        return [
            f'{{"kind":"person","date_time":{at},"id":{key},"name":"{first} {last}",'
            f'"email":"{first.lower()}@{host.replace(" ", "-")}.com",'
            f'"credit_card":"{card:016d}","city":"{city}","state":"{state}","extra":"{extra}"}}'
            for at, key, first, last, host, card, city, state, extra in rows
        ]

    def _auctions(self, number: Numbers) -> list[str]:
        initial = self._prices("price", number)
        reserve = initial + self._prices("reserve", number)
        hot = _last_person(number) // HOT_EVERY * HOT_EVERY
        seller = np.where(self._below("seller_is_hot", number, 4) > 0, hot, self._any_person("seller", number))
        # The average time until that number of auctions have begun, or at most twice as long.
        horizon_ms = AUCTIONS_IN_FLIGHT * GROUP // AUCTIONS_A_GROUP * 1000 // self.rate
        expires = self._made_ms(number) + 1 + self._below("length", number, max(2 * horizon_ms, 1))
        category = FIRST_CATEGORY + self._below("category", number, CATEGORIES)
        rows = zip(
            *self._head(number), (FIRST_ID + _last_auction(number)).tolist(), self._texts("item", number, 20),
            self._texts("description", number, 100), initial.tolist(), reserve.tolist(), expires.tolist(),
            (FIRST_ID + seller).tolist(), category.tolist(), self._extras(number, AUCTION), strict=True,
        )  # fmt: skip
        return [
            f'{{"kind":"auction","date_time":{at},"id":{key},"item":"{item}","description":"{text}","initial_bid":{initial},'
            f'"reserve":{reserve},"expires":{expires},"seller":{seller},"category":{category},"extra":"{extra}"}}'
            for at, key, item, text, initial, reserve, expires, seller, category, extra in rows
        ]

    def _bids(self, number: Numbers) -> list[str]:
        last = _last_auction(number)
        first = np.maximum(last - AUCTIONS_IN_FLIGHT, 0)
        in_flight = first + self._below("auction", number, last - first + 1 + AUCTIONS_AHEAD)
        auction = np.where(self._below("auction_is_hot", number, 2) > 0, last // HOT_EVERY * HOT_EVERY, in_flight)
        hot = _last_person(number) // HOT_EVERY * HOT_EVERY + 1
        bidder = np.where(self._below("bidder_is_hot", number, 4) > 0, hot, self._any_person("bidder", number))
        other = self._below("channel", number, CHANNELS)
        names = [f"channel-{one}" for one in range(CHANNELS)]
        hot_names = _chosen(HOT_CHANNELS, self._draw("channel", number))
        is_hot = (self._below("channel_is_hot", number, 2) > 0).tolist()
        says_id = (self._below("id_in_url", number, 10) > 0).tolist()
        rows = zip(
            *self._head(number), (FIRST_ID + auction).tolist(), (FIRST_ID + bidder).tolist(),
            self._prices("price", number).tolist(), is_hot, hot_names, other.tolist(), says_id,
            self._texts("url", number, 5, exactly=True), self._extras(number, BID), strict=True,
        )  # fmt: skip
        lines = []
        for at, auction_id, bidder_id, price, is_hot_one, hot_name, place, has_id, path, extra in rows:
            channel = hot_name if is_hot_one else names[place]
            query = "" if is_hot_one or not has_id else f"&channel_id={place}"
            way = path.replace(" ", "_")
            lines.append(
                f'{{"kind":"bid","date_time":{at},"auction":{auction_id},"bidder":{bidder_id},"price":{price},'
                f'"channel":"{channel}",'
                f'"url":"https://www.nexmark.com/{way}/{way[::-1]}/{way[1:3]}/item.htm?query=1{query}","extra":"{extra}"}}'
            )
        return lines

    def _head(self, number: Numbers) -> tuple[list[int]]:
        return (self._made_ms(number).tolist(),)

    def _any_person(self, what: str, number: Numbers) -> Numbers:
        last = _last_person(number)
        active = np.minimum(last, PEOPLE_ACTIVE)
        return last - active + self._below(what, number, active + PEOPLE_AHEAD)

    def _prices(self, what: str, number: Numbers) -> Numbers:
        """Return prices of 1 to 1,000,000 in cents. Each order of magnitude has the same frequency."""
        share = self._draw(what, number).astype(np.float64) / 2.0**64
        return np.rint(10.0 ** (share * 6.0) * 100.0).astype(np.int64)

    def _extras(self, number: Numbers, kind: str) -> list[str]:
        return self._texts("extra", number, _BYTES[kind] // 2)

    def _texts(self, what: str, number: Numbers, length: int, *, exactly: bool = False) -> list[str]:
        """Return strings of letters and blanks, of at least 3 and at most `length` characters: parts of one long string."""
        begin = self._below(what, number, _POOL - length)
        # Use the other half of the same draw.
        drawn = (self._draw(what, number) >> np.uint64(40)).astype(np.int64)
        end = begin + (length if exactly else 3 + drawn % (length - 2))
        pool = self._pool
        return [pool[one:other] for one, other in zip(begin.tolist(), end.tolist(), strict=True)]

    @cached_property
    def _pool(self) -> str:
        drawn = self._draw("extra_length", np.arange(_POOL, dtype=np.int64))
        return _LETTERS[(drawn % np.uint64(len(_LETTERS))).astype(np.int64)].tobytes().decode()

    def _below(self, what: str, number: Numbers, limit: int | Numbers) -> Numbers:
        """Return an integer from 0 to below the limit for each record."""
        limits = np.broadcast_to(np.asarray(limit, np.uint64), number.shape)
        return (self._draw(what, number) % limits).astype(np.int64)

    def _draw(self, what: str, number: Numbers) -> npt.NDArray[np.uint64]:
        """Return 64 random bits for each record, different for each purpose: SplitMix64 of seed, purpose, and number."""
        begin = np.uint64((self.seed * len(_DRAWS) + _DRAWS.index(what)) * 0x9E3779B97F4A7C15 % 2**64)
        return _mixed(_mixed(begin + np.zeros(1, np.uint64)) + number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _last_person(number: Numbers) -> Numbers:
    """Return the last registered person at the time of the record, counted from 0."""
    return number // GROUP


def _last_auction(number: Numbers) -> Numbers:
    """Return the last auction that has begun at that time, including this one; before the first one, the first."""
    begun = number // GROUP * AUCTIONS_A_GROUP + np.minimum(number % GROUP, AUCTIONS_A_GROUP)
    return np.maximum(begun - 1, 0)


def _chosen(names: tuple[str, ...], drawn: npt.NDArray[np.uint64]) -> list[str]:
    return [names[one] for one in (drawn // np.uint64(7) % np.uint64(len(names))).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark.generator", description=__doc__)
    parser.add_argument("--records", type=int, default=10_000, help="number of records (default 10000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the records (default 1)")
    parser.add_argument("--rate", type=int, default=10_000, help="records per second of event time (default 10000)")
    parser.add_argument("--disorder-ms", type=int, default=0, help="maximum delay of a record in ms (default 0)")
    options = parser.parse_args()
    made = Nexmark(options.records, options.seed, options.rate, disorder_ms=options.disorder_ms)
    sys.stdout.buffer.writelines(line + b"\n" for line in made.lines())


if __name__ == "__main__":
    main()
