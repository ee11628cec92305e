"""The study of ReFrame: a test per point; its rows stand in the performance log."""

import os
import sys

import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class Point(rfm.RunOnlyRegressionTest):
    """Measure a point in a process, and read its time from what it printed."""

    number = parameter(range(int(os.environ["STUDY_POINTS"])))  # noqa: F821 - ReFrame's own word
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = sys.executable

    @run_before("run")  # noqa: F821
    def command(self):
        """Print the row of the point."""
        code = "import os, work; print(work.measure({}, os.environ['STUDY_OUT']))"
        self.executable_opts = ["-c", f'"{code.format(self.number)}"']

    @sanity_function  # noqa: F821
    def printed(self):
        """Tell whether there is a row."""
        return sn.assert_found(r"\d", self.stdout)

    @performance_function("ms")  # noqa: F821
    def ms(self):
        """Return the time."""
        return sn.extractsingle(r"(\S+)", self.stdout, 1, float)
