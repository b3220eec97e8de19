"""Tests of the check for plain English, with planted mistakes and with right texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import words_check
from scripts.words_check import RULES, Limit, check_source, compare, counted, exceeding, lowered, owner, read_limits

WRONG = {
    "D1": ["So many rows are merged at once.", "As whom jobs ask it.", "Whose token it is."],
    "D2": ["Of the topic now."],
    "D3": ["Whether there was one.", "Whether all are done."],
    "D4": ["Likewise for streams.", "The same for jobs.", "Its name."],
    "D5": ["What the job read.", "How a record is read."],
    "F1": ["Limit of a run. Of a stream with keys the first."],
    "F2": ["Return what stands before the array.", "Read what is there.", "Return what they hold."],
    "F4": ["An only one: the only one of all.", "Merge so many rows."],
    "F6": ["Return all but the last.", "The run shall end.", "Kept for ever."],
    "W1": ["Sender that was told the offset."],
    "W3": ["Line that stands here."],
    "W4": ["Compute windows anew."],
    "W5": ["Run beside the job.", "Besides, it is slow."],
    "W7": ["Mend the cause.", "Record that was judged."],
    "W8": ["Return whom it names.", "Nobody reads this: nobody.", "Close the door."],
    "W9": ["Order that goes by the number.", "Return the present version."],
    "W10": ["Compare texts.", "Accept a whole number."],
}
RIGHT = [
    "Return the rows of each bucket.",
    "True if the job stands for election.",
    "Two modes that can be told apart.",
    "Code in quotes isn't checked: `told` and `anew`.",
    "Program that the user nobody starts.",
    "Pages behind a proxy.",
]


def rules(source: str, path: str = "example.py", *, hints: bool = False) -> list[str]:
    return [one.rule for one in check_source(source, path, hints=hints)]


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in WRONG.items() for text in texts])
def test_each_ban_is_found_in_a_docstring(rule: str, text: str) -> None:
    assert rule in rules(f'def f():\n    """{text}"""\n')


def test_each_ban_has_a_planted_mistake() -> None:
    assert set(WRONG) == {name for name, rule in RULES.items() if rule.is_ban}


@pytest.mark.parametrize("text", RIGHT)
def test_a_right_docstring_has_no_finding(text: str) -> None:
    assert rules(f'"""{text}"""\n') == []


def test_a_question_word_is_a_ban_for_a_function_and_a_hint_for_a_field() -> None:
    field = 'class C:\n    """Settings."""\n    name: str = ""\n    """What the user sees."""\n'
    assert rules(field) == []
    assert rules(field, hints=True) == ["D5F"]
    assert rules('def f():\n    """What the user sees."""\n') == ["D5"]


@pytest.mark.parametrize(
    "source",
    [
        'raise ValueError("the sender was told it")',
        'raise ValueError(f"job {job} was told it by {name}")',
        'log.info("the sender was " "told it")',
        "x = 1  # the sender was told it\n",
        "# A comment of two lines: the sender was\n# told it.\n",
        's = "a # in a string"  # the sender was told it\n',
        's = "ä #"  # was told it twice\n',
    ],
)
def test_messages_and_comments_are_read(source: str) -> None:
    assert rules(source) == ["W1"]


@pytest.mark.parametrize(
    "source",
    [
        "# Example:\n#\n#   it was told\n",
        'x = "told"\n',
        's = "a # told"[0]\n',
        's = "# told it"\n',
        'f(b"the sender was told it")',
        "told_it = 1\n",
        's = "CREATE TABLE told (it)"\n',
        's = "pipeline: p\\nfrom: told it was"\n',
        's = "create view v as\\nselect told it was"\n',
    ],
)
def test_names_and_short_strings_are_not_read(source: str) -> None:
    assert rules(source) == []


def test_a_sentence_is_counted_over_lines_but_not_over_list_items() -> None:
    words = "word " * 16
    assert rules(f"Begin {words}\nand {words}.\n", "page.md") == ["long"]
    assert rules(f"- Begin {words}\n- and {words}\n", "page.md") == []
    assert rules(f"Begin {words}. And {words}.\n", "page.md") == []
    assert rules(f"| Begin {words} | and {words} |\n", "page.md") == []


def test_code_of_a_page_is_not_read() -> None:
    page = (
        "# Title\n\nText.\n\n```sh\nwas told anew\n```\n\n    was told anew\n    was told anew\n\nIt was told `told`.\n"
    )
    found = check_source(page, "page.md")
    assert [(one.rule, one.line) for one in found] == [("W1", 12)]
    assert "page.md:12: W1: " in str(found[0]) and "reported" in str(found[0])


def test_an_example_in_a_docstring_is_not_read() -> None:
    assert rules('def f():\n    """Return x.\n\n        told\n\n    See y.\n    """\n') == []
    assert rules('def f():\n    """Return x.\n\n    Args: x: a\n        told\n    """\n') == ["W1"]


def test_a_list_item_after_an_empty_line_is_read() -> None:
    assert rules("1. First.\n\n    - was told it\n", "page.md") == ["W1"]


def test_texts_of_the_console_are_read_without_tags_and_expressions() -> None:
    source = "// was told\nconst a = html`<p>The sender was ${told} told</p>`;\nconst b = 'anew';\n"
    assert [(one.rule, one.line) for one in check_source(source, "view.js")] == [("W1", 1), ("W1", 2)]
    assert rules("<h1>It was told</h1><script>told</script>", "page.html") == ["W1"]
    assert rules("name: told  # was told\n", "rules.yml") == ["W1"]


def test_a_count_must_not_rise() -> None:
    limits = read_limits("# comment\ntests 1 1\ntests/unit 0 0\n")
    assert [owner(path, limits) for path in ("tests/a.py", "tests/unit/b.py", "tests_of.py")] == [
        "tests",
        "tests/unit",
        "",
    ]
    told = check_source("# was told\n", "tests/a.py")
    long = check_source(f"# {'word ' * 31}\n", "tests/a.py")
    root = Path(words_check.__file__).parents[1]
    assert compare(counted([*told, *long], limits), limits, root) == []
    (message,) = compare(counted([*told, *told], limits), limits, root)
    assert message == "tests: 2 bans, at most 1 allowed"
    (message,) = compare(counted([*long, *long], limits), limits, root)
    assert message == "tests: 2 long sentences, at most 1 allowed"
    (message,) = compare(counted([told[0]._replace(path="tests/unit/c.py")], limits), limits, root)
    assert message == "tests/unit: 1 ban, at most 0 allowed"


def test_the_findings_of_a_path_over_its_limit_are_printed() -> None:
    limits = read_limits("tests 1 1\nstrandline 0 0\n")
    told = [check_source("# was told\n", path)[0] for path in ("tests/a.py", "strandline/b.py", "strandline/c.py")]
    long = check_source(f"# {'word ' * 31}\n", "tests/d.py")
    findings = [*told, *long]
    assert exceeding(findings, counted(findings, limits), limits) == told[1:]


def test_a_file_without_a_row_must_have_no_finding(tmp_path: Path) -> None:
    found = check_source("# was told\n", "new/a.py")
    (message,) = compare(counted(found, {}), {}, tmp_path)
    assert message.startswith("files that no row of scripts/words_limits.txt contains: 1 ban,")
    (message,) = compare({}, {"gone": Limit(0, 0)}, tmp_path)
    assert message == "gone: no such file or folder; correct its row"


def test_limits_are_lowered_and_never_raised() -> None:
    text = "# comment\ntests 3 1\ndocs 0 0\n"
    assert read_limits(lowered(text, {"tests": Limit(1, 5), "docs": Limit(7, 0)})) == {
        "tests": Limit(1, 1),
        "docs": Limit(0, 0),
    }
    assert lowered(text, {"tests": Limit(1, 5), "docs": Limit(7, 0)}).startswith("# comment\n")


def test_each_path_of_the_table_exists() -> None:
    limits = read_limits(words_check.LIMITS.read_text(encoding="utf-8"))
    assert "strandline" in limits
    assert compare({}, limits) == []
