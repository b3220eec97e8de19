"""An error that comes again at each look is logged once, and so is its end."""

import structlog
from structlog.testing import capture_logs

from strandline.core.errors import Conflict, LedgerUnavailable
from strandline.services.supervision.repeated_errors import RepeatedErrors


def test_an_error_and_its_end_are_logged_once_and_another_error_between_them_too() -> None:
    errors = RepeatedErrors(structlog.get_logger())
    with capture_logs() as logs:
        errors.worked("well again", action="look")
        for number in range(3):
            errors.failed("not well", LedgerUnavailable(f"try {number}"), action="look")
        errors.failed("not well", Conflict("else"), action="look")
        for _ in range(2):
            errors.worked("well again", action="look")
        errors.failed("not well", LedgerUnavailable("once more"), action="look")
    assert [(log["event"], log.get("error")) for log in logs] == [
        ("not well", "try 0"),
        ("not well", "else"),
        ("well again", None),
        ("not well", "once more"),
    ]


def test_each_job_has_errors_of_its_own() -> None:
    errors = RepeatedErrors(structlog.get_logger())
    with capture_logs() as logs:
        for job in ("power", "heat", "power"):
            errors.failed("not attended to", LedgerUnavailable("away"), action="attend", job=job)
        errors.worked("attended to", action="attend", job="heat")
        errors.worked("attended to", action="look")
    assert [(log["event"], log["job"]) for log in logs] == [
        ("not attended to", "power"),
        ("not attended to", "heat"),
        ("attended to", "heat"),
    ]
