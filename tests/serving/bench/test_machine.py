"""What a benchmark says of its machine."""

from __future__ import annotations

import json
import platform

from serving.bench.machine import describe_machine


def test_it_says_what_figures_depend_on() -> None:
    """Processor, cores, memory, Python, versions and the load, as JSON."""
    told = json.loads(json.dumps(describe_machine(["numpy"])))
    assert told["cpu"]
    assert told["cores"] >= 1
    assert told["memory_gb"] > 0
    assert told["python"] == platform.python_version()
    assert told["versions"].keys() == {"zroact-stage2", "numpy"}
    assert len(told["load_average"]) == 3


def test_a_package_that_is_not_there_has_no_version() -> None:
    """Benchmarks without the models' libraries say so."""
    assert describe_machine(["no-such-package"])["versions"]["no-such-package"] is None
