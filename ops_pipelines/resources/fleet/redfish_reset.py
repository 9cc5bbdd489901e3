"""Restarts a BMC, and with it nothing of the node: what makes its own firmware run. When, is `redfish_update`'s."""

from ops_pipelines.core.sources import SourceRefused
from ops_pipelines.resources.config.redfish_settings import RedfishSettings
from ops_pipelines.resources.fleet.redfish_call import BmcTalk, part, word
from ops_pipelines.resources.fleet.redfish_inventory import choose_manager

_RESETS = ("GracefulRestart", "ForceRestart")
"""Of a manager, the gentler one first."""


def reset_manager(talk: BmcTalk, settings: RedfishSettings) -> None:
    """Send the gentlest restart that the BMC's manager offers. Raises SourceRefused if it offers none."""
    action = part(talk.get(choose_manager(talk, settings)), "Actions", "#Manager.Reset")
    target = word(action, "target")
    allowed = _allowed_resets(talk, action)
    kind = next((each for each in _RESETS if allowed is None or each in allowed), None)
    if not target or kind is None:
        raise SourceRefused("the BMC does not offer to be reset; reset it by hand")
    talk.command(target, {"ResetType": kind})


def _allowed_resets(talk: BmcTalk, action: object) -> frozenset[str] | None:
    """Return what a manager's reset may be; None if it does not say."""
    told = part(action, "ResetType@Redfish.AllowableValues")
    info = word(action, "@Redfish.ActionInfo")
    if not isinstance(told, list) and info:
        parameters = part(talk.get(info), "Parameters")
        found = (
            [each for each in parameters if word(each, "Name") == "ResetType"] if isinstance(parameters, list) else []
        )
        told = part(found[0], "AllowableValues") if found else None
    return frozenset(str(each) for each in told) if isinstance(told, list) else None
