"""One of the Eclipse Paho interoperability suites against a broker, in a process of its own.

    python tests/conformance/mqtt/paho_suite.py DIRECTORY client_test5 PORT [TEST ...]

DIRECTORY has the suite's modules (https://github.com/eclipse/paho.mqtt.testing, `interoperability`). Prints a line for
each test, `ok NAME` or `FAILED NAME reason`, and ends with 1 when one failed.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import traceback
import unittest

TOPICS = ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")
WILD_TOPICS = ("TopicA/+", "+/C", "#", "/#", "/+", "+/+", "TopicA/#")
REFUSED_TOPICS = ("test/nosubscribe",)
"""What the suites' main programs set; nobody may subscribe to the last."""


TEST_S_MAX = 90
"""A suite's own client may wait for ever."""


class Result(unittest.TestResult):
    """Prints as it goes; what the suites print themselves is left out."""

    def __init__(self, out: io.TextIOBase) -> None:
        super().__init__()
        self.out = out

    def say(self, verdict: str, test: unittest.TestCase, reason: str = "") -> None:
        name = getattr(test, "_testMethodName", str(test))
        print(verdict, name, reason, file=self.out, flush=True)

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        signal.alarm(TEST_S_MAX)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.alarm(0)
        super().stopTest(test)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.say("ok", test)

    def addError(self, test: unittest.TestCase, err: tuple) -> None:  # type: ignore[type-arg]
        super().addError(test, err)  # type: ignore[arg-type]
        self._told(test, err)

    def addFailure(self, test: unittest.TestCase, err: tuple) -> None:  # type: ignore[type-arg]
        super().addFailure(test, err)  # type: ignore[arg-type]
        self._told(test, err)

    def _told(self, test: unittest.TestCase, err: tuple) -> None:  # type: ignore[type-arg]
        where = next(
            (
                f"line {line.lineno}: {line.line}"
                for line in reversed(traceback.extract_tb(err[2]))
                if "client_test" in line.filename
            ),
            "",
        )
        self.say("FAILED", test, f"{where}: {err[0].__name__} {' '.join(str(err[1]).split())}")


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not over after {TEST_S_MAX} s")


def main() -> int:
    """See the module."""
    directory, name, port, *only = sys.argv[1:]
    sys.path.insert(0, directory)
    sys.argv = [name]
    logging.getLogger().setLevel(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _too_long)
    out = sys.stdout
    with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink):
        suite = importlib.import_module(name)
        vars(suite).update(host="127.0.0.1", port=int(port))
        vars(suite)["topic_prefix"] = f"{name}/"
        vars(suite).update(topics=TOPICS, wildtopics=WILD_TOPICS, nosubscribe_topics=REFUSED_TOPICS)
        tests = unittest.defaultTestLoader.loadTestsFromTestCase(suite.Test)
        if only:
            tests = unittest.TestSuite(test for test in tests if test._testMethodName in only)  # type: ignore[union-attr]
        result = Result(out)  # type: ignore[arg-type]
        tests.run(result)
    out.flush()
    return 0 if result.testsRun and result.wasSuccessful() else 1


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of its clients may be left
