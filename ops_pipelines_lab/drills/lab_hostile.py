"""The act whose names and reasons somebody wrote who means ill: each would do harm in a shell or in markup.

The proof is a file that each of them would make: none may exist. Slurm itself takes all of this from any user.
"""

from collections.abc import Iterator
from pathlib import Path

from ops_pipelines_lab.drills.lab_acts import ForeignDrainBefore
from ops_pipelines_lab.drills.lab_stage import Demand

_MARKUP = "<img src=x onerror=alert(1)>"


class HostileWords(ForeignDrainBefore):
    """A job's name and comment, and an operator's reason, with quotes, commands, markup, lines of their own."""

    fault = "hostile job name, comment and reason"

    @property
    def _canary(self) -> Path:
        return self.view.stage.checkpoints / "canary"

    @property
    def _spell(self) -> str:
        touch = f"touch {self._canary}"
        return f"'; {touch}1 #\"; {touch}2 #`{touch}3`$({touch}4) {_MARKUP} |[x](javascript:alert(1))|"

    @property
    def job_name(self) -> str:
        return f"{self._spell}\nJobId=1 JobName=x\nNodeList=gpu001 JobState=COMPLETED\n{{node}} {{reason}}"

    @property
    def comment(self) -> str:
        return f"{super().comment} {self._spell}\nNodeList=gpu001 service={self._spell} min_serving=9"

    @property
    def reason(self) -> str:
        return f"OPS-19 {self._spell} NodeList=gpu001 State=RESUME {{node}}"

    def _break(self) -> str:
        super()._break()
        return f"an operator drained {self.node} with a hostile reason, then Xid 79 under a job with a hostile name"

    def demands(self) -> Iterator[Demand]:
        yield from super().demands()
        made = sorted(path.name for path in self._canary.parent.glob(f"{self._canary.name}*"))
        yield Demand(is_so=not made, otherwise=f"something reached a shell: {', '.join(made)} exist")
        job = self.view.job(self.job)
        is_whole = job is not None and job.name == self.job_name
        yield Demand(is_so=is_whole, otherwise=f"the job reads as {None if job is None else job.name!r}")
        messages = self.view.stage.around.site.messages.read_text(encoding="utf-8")
        yield Demand(
            is_so=bool(messages) and self._canary.name not in messages and "onerror" not in messages,
            otherwise="words of the job or of the reason are in the messages",
        )
        for incident in self._incidents(self.node):
            report = self.view.command("repair", "report", incident.incident)
            yield Demand(is_so=_MARKUP not in report, otherwise=f"the report on {incident.incident} holds live markup")
            shown = self.view.command("show", incident.incident)
            steering = sorted({char for char in shown if not (char.isprintable() or char == "\n")})
            yield Demand(is_so=not steering, otherwise=f"{incident.incident} is shown with {steering}")
