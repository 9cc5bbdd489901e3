"""`ops-pipelines quota`: what teams are owed and get, and what other quotas would have done."""

import typer

from ops_pipelines.terminal.quota_replay import quota_replay

quota_app = typer.Typer(
    help="Share GPUs out among teams: guarantee, borrow, lend.", no_args_is_help=True, rich_markup_mode=None
)
quota_app.command("replay")(quota_replay)


@quota_app.callback()
def _quota() -> None:
    """One command needs a group around it, or it would be the group."""
