"""One row of the catalogue as `logs explain` answers it: as JSON and as fields, with every source's answer.

Finding what a line means is `observe.logs.classify`'s. Heavy imports stay inside functions, as `--help` passes through
`log_commands`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops_pipelines.core.finding import CodeRule, LogRule, RepeatRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One row of the catalogue, ready to be shown."""

    name: str
    rule: "CodeRule | LogRule"

    def as_json(self) -> dict[str, object]:
        rule = self.rule
        repeat = rule.repeat
        return {
            "name": self.name,
            "mnemonic": getattr(rule, "mnemonic", None),
            "meaning": rule.meaning,
            "at_fault": rule.at_fault.value,
            "family": rule.family.value,
            "actions": self.actions(),
            "is_destructive": self.is_destructive(),
            "is_secondary": rule.is_secondary,
            "repeat": None
            if repeat is None
            else {
                "count": repeat.count,
                "within_hours": repeat.within.total_seconds() / 3600,
                "then": repeat.then.value,
                "source": repeat.source,
            },
            "is_disputed": self.is_disputed(),
            "answers": [{"source": answer.source, "says": answer.says} for answer in getattr(rule, "answers", ())],
            "source": rule.source,
        }

    def as_fields(self) -> dict[str, str]:
        rule = self.rule
        mnemonic = getattr(rule, "mnemonic", "")
        return {
            "name": f"{self.name} {mnemonic}".strip(),
            "meaning": rule.meaning,
            "at fault": rule.at_fault.value,
            "first action": self.actions()[0] + (" (takes a node out of service)" if self.is_destructive() else ""),
            "or else": ", ".join(self.actions()[1:]),
            "damage of": "something else, mostly: it opens nothing by itself" if rule.is_secondary else "",
            "on repetition": _repeat_text(rule.repeat),
            "source": rule.source,
        }

    def actions(self) -> list[str]:
        from ops_pipelines.core.finding import CodeRule

        rule = self.rule
        return [rule.first_action.value] if isinstance(rule, CodeRule) else [action.value for action in rule.actions]

    def is_destructive(self) -> bool:
        from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, FirstAction

        return FirstAction(self.actions()[0]) in DESTRUCTIVE_ACTIONS

    def is_disputed(self) -> bool:
        return bool(getattr(self.rule, "is_disputed", False))


def explain_name(name: str) -> Explained | None:
    """Return the row of the catalogue called `xid_79`, `sxid_20034` or as a signature; None if there is none."""
    from ops_pipelines.resources.catalogue_files import read_catalogue

    catalogue = read_catalogue()
    kind, _, number = name.rpartition("_")
    codes = {"xid": catalogue.xids, "sxid": catalogue.sxids}.get(kind)
    rule: CodeRule | LogRule | None = None
    if codes is not None and number.isdecimal():
        rule = codes.get(int(number))
    if rule is None:
        rule = catalogue.signatures.get(name)
    return None if rule is None else Explained(name=name, rule=rule)


def meanings() -> dict[str, str]:
    """Return what each signature, Xid and SXid of the catalogue means, by its name."""
    from ops_pipelines.resources.catalogue_files import read_catalogue

    catalogue = read_catalogue()
    return {
        **{name: rule.meaning for name, rule in catalogue.signatures.items()},
        **{f"xid_{code}": rule.meaning for code, rule in catalogue.xids.items()},
        **{f"sxid_{code}": rule.meaning for code, rule in catalogue.sxids.items()},
        "xid_unknown": "an Xid that the catalogue does not have: reported, never acted on",
        "sxid_unknown": "an SXid that the catalogue does not have: reported, never acted on",
    }


def _repeat_text(repeat: "RepeatRule | None") -> str:
    if repeat is None:
        return ""
    hours = repeat.within.total_seconds() / 3600
    return f"{repeat.count} within {hours:g} h on one part: {repeat.then.value} ({repeat.source})"
