"""Reports of `pipeline test`: lines for people, JSON, and the XML of JUnit. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as Xml

from strandline.core.errors import PermanentError

if TYPE_CHECKING:
    from strandline.processing.desk.case_run import CaseReport
    from strandline.processing.desk.expectations import Differences, Fields

_SHOWN_MAX = 20
"""Maximum number of differences of each kind that are printed."""
_CONTROL = {code: "\ufffd" for code in range(32) if chr(code) not in "\t\n\r"}
"""Characters that XML can't contain -> substitute."""


class TestsFailed(PermanentError):
    """The results of a pipeline differ from the expected results of its tests."""

    code = "tests_failed"


def case_lines(report: CaseReport) -> Iterator[str]:
    """Yield the outcome of a test, and its differences."""
    yield f"{report.name}: {'ok' if report.passed else 'FAILED'} ({report.seconds:.2f} s)"
    for sentence in report.messages:
        yield f"  {sentence}"
    for what, differences in (("result", report.results), ("dead letter", report.dead_letters)):
        yield from _difference_lines(what, differences)


def _difference_lines(what: str, differences: Differences) -> Iterator[str]:
    for title, documents in (("missing", differences.missing), ("extra", differences.extra)):
        for one in documents[:_SHOWN_MAX]:
            yield f"  {title} {what}: {_text(one)}"
        if len(documents) > _SHOWN_MAX:
            yield f"  and {len(documents) - _SHOWN_MAX} more {title}"
    for other in differences.different[:_SHOWN_MAX]:
        yield f"  different {what}: {_text(_known(other.expected, other.fields))}"
        for name, (expected, found) in other.fields.items():
            yield f"    {name}: expected {_json(expected)}, got {_json(found)}"
    if len(differences.different) > _SHOWN_MAX:
        yield f"  and {len(differences.different) - _SHOWN_MAX} more different"


def _known(expected: Fields, unlike: dict[str, tuple[Any, Any]]) -> Fields:
    return {name: value for name, value in expected.items() if name not in unlike}


def _text(fields: Fields) -> str:
    """Return a document on one line, without the columns that describe its origin in the ledger."""
    left_out = ("strandline.job", "strandline.version", "strandline.epoch", "strandline.emission", "_id", "_index")
    return ", ".join(f"{name}: {_json(value)}" for name, value in fields.items() if name not in left_out)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def report_json(report: CaseReport) -> dict[str, Any]:
    """Return the outcome of a test with all differences."""
    return {
        "name": report.name,
        "passed": report.passed,
        "seconds": round(report.seconds, 3),
        "messages": report.messages,
        "results": _differences_json(report.results),
        "dead_letters": _differences_json(report.dead_letters),
    }


def _differences_json(differences: Differences) -> dict[str, Any]:
    return {
        "missing": differences.missing,
        "extra": differences.extra,
        "different": [
            {
                "expected": one.expected,
                "found": one.found,
                "fields": {name: {"expected": e, "found": f} for name, (e, f) in one.fields.items()},
            }
            for one in differences.different
        ],
    }


def junit_xml(reports: Sequence[CaseReport]) -> bytes:
    """Return the report for build servers."""
    failures = sum(not one.passed for one in reports)
    seconds = f"{sum(one.seconds for one in reports):.3f}"
    suite = Xml.Element("testsuite", name="strandline", tests=str(len(reports)), failures=str(failures), time=seconds)
    for one in reports:
        case = Xml.SubElement(suite, "testcase", classname="strandline", name=one.name, time=f"{one.seconds:.3f}")
        if not one.passed:
            lines = [line.translate(_CONTROL) for line in case_lines(one)]
            failure = Xml.SubElement(case, "failure", message=(lines[1] if len(lines) > 1 else lines[0]).strip())
            failure.text = "\n".join(lines)
    written: bytes = Xml.tostring(suite, encoding="utf-8", xml_declaration=True)
    return written
