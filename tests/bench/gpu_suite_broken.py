"""A suite for the tests of `make gpu`: one row, one failure, one refusal, and then it hangs."""

import time

from bench.gpu.report import Cannot, Report

ROWS = ("first_us", "second_us", "third_us", "fourth_us")


def measure(report: Report) -> None:
    report.add("first_us", 1.0, "us")
    with report.rows("second_us"):
        raise ValueError("it fell\nover")
    with report.rows("third_us"):
        raise Cannot("there is too little of it")
    time.sleep(60)
