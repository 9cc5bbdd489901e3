"""Findings -> incidents: one incident a cause, culprit apart from victims. The order of the passes, and no more.

Pure and independent of the order in which findings come. Each pass is a module: a finding gets its place (`placing`,
`belonging`, `joining`), what stands together is blamed on what it shares (`gathering`, `mass_event`), damage goes to
its cause (`explanation`), and what is over is closed (`closing`). What an incident means in words is `diagnose`.
"""

from collections.abc import Collection

from ops_pipelines.core.finding import Finding
from ops_pipelines.core.incident import Incident, fold
from ops_pipelines.domain.diagnosis.board import Board
from ops_pipelines.domain.diagnosis.closing import (
    close_what_cleared,
    close_what_nobody_was_told,
    close_what_was_only_watched,
    close_what_was_restarted,
    close_what_was_returned,
    split_what_stays,
)
from ops_pipelines.domain.diagnosis.explanation import absorb_what_is_explained
from ops_pipelines.domain.diagnosis.gathering import gather_shared_causes
from ops_pipelines.domain.diagnosis.mass_event import merge_mass_event, renew_mass_events
from ops_pipelines.domain.diagnosis.placing import place
from ops_pipelines.domain.diagnosis.response import by_urgency
from ops_pipelines.domain.diagnosis.world import World


def correlate(findings: Collection[Finding], incidents: Collection[Incident], world: World) -> tuple[Incident, ...]:
    """Return every incident that is new or changed. The same findings in another order give the same incidents.

    Repairs are placed first, so that an application error on a node that just lost a GPU counts as its victim and
    not as somebody's bug. Shared parts are blamed before many nodes are called a mass event, which knows no cause, and
    both before damage looks for what explains it; only then is it clear what each incident rests on, and what is over.
    """
    board = Board(incidents, world)
    close_what_was_returned(board)
    for finding in sorted(fold(findings), key=by_urgency):
        place(finding, board)
    gather_shared_causes(board)
    merge_mass_event(board)
    renew_mass_events(board)
    absorb_what_is_explained(board)
    split_what_stays(board)
    close_what_cleared(board)
    close_what_was_restarted(board)
    close_what_nobody_was_told(board)
    close_what_was_only_watched(board)
    return board.changed()
