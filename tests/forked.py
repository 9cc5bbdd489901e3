"""Where tests get other processes from: forked from one server that has imported what they do, in milliseconds each.

A new interpreter costs a second of imports. The server is one for all tests of a process, and so is the list of what it
imports: anyone who named its own would take away everybody else's.
"""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("tests.resources.lake_processes", "tests.resources.ledger_processes", "tests.resources.restore_processes"),
        *("tests.scenarios.lake_run_processes", "tests.scenarios.stopped_holder"),
    ]
)
