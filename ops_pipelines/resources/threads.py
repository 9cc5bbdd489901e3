"""What each kind of service knows of a thread, a key and an end, put where Apprise 2.2 lets it be put.

Imports Apprise: to be imported when something is sent, not before.

Mail: one subject and one `References` a thread, so that mail programs keep it together. PagerDuty: one incident a
thread, rung for what needs somebody, resolved when it is over. JSON: fields of their own. Others, chats among them: the
thread and the key stand in the text; Apprise cannot reply within a thread there.
"""

from apprise import Apprise, AppriseAsset, NotifyBase, NotifyType
from apprise.plugins.custom_json import NotifyJSON
from apprise.plugins.email import NotifyEmail
from apprise.plugins.pagerduty import NotifyPagerDuty, PagerDutyAction

from ops_pipelines.core.identity import digest_of
from ops_pipelines.core.notes import Message, Severity
from ops_pipelines.resources.notifier import hide_secrets, is_address, one_line

_TYPES = {
    Severity.INFO: NotifyType.INFO,
    Severity.NOTICE: NotifyType.INFO,
    Severity.WARNING: NotifyType.WARNING,
    Severity.CRITICAL: NotifyType.FAILURE,
}
hide_secrets()
_CALLS = frozenset({Severity.WARNING, Severity.CRITICAL})


def open_services(url: str, message: Message, *, cluster_name: str) -> tuple[NotifyBase, ...]:
    """Return the service behind a URL, which knows the message's thread; several for a pager, one an incident.

    Empty if Apprise does not know the URL.
    """
    service = _open(url)
    if service is None:
        return ()
    if isinstance(service, NotifyPagerDuty):
        return _open_pager(url, message, cluster_name=cluster_name) or (service,)
    if isinstance(service, NotifyEmail):
        root = f"<{digest_of(cluster_name, message.thread)[:32]}@ops-pipelines>"
        service.headers.update({"References": root, "In-Reply-To": root, "Auto-Submitted": "auto-generated"})
        if message.key:
            service.headers["X-Ops-Pipelines-Message"] = one_line(message.key)
    elif isinstance(service, NotifyJSON):
        service.payload_extras.update(
            {
                "cluster": cluster_name,
                "audience": message.audience.value,
                "recipient": one_line(message.recipient),
                "thread": one_line(message.thread),
                "key": one_line(message.key),
                "severity": message.severity.value,
                "closes": [one_line(thread) for thread in message.closes],
            }
        )
    return (service,)


def is_wanted(service: NotifyBase, message: Message) -> bool:
    """Return whether a message is for this kind of service: a pager never rings for what needs nobody."""
    return not isinstance(service, NotifyPagerDuty) or message.severity in _CALLS or bool(message.closes)


def body_for(service: NotifyBase, message: Message) -> str:
    """Return the body; in mail what is new is above it, for the subject is that of the whole thread."""
    is_threaded_mail = isinstance(service, NotifyEmail) and message.subject
    return f"{one_line(message.title)}\n\n{message.body}" if is_threaded_mail else message.body


def title_for(service: NotifyBase, message: Message, *, cluster_name: str) -> str:
    """Return the title; in mail the subject of the thread, the same each time."""
    told = message.subject if message.subject and isinstance(service, NotifyEmail) else message.title
    return f"[{cluster_name}] {one_line(told)}" if cluster_name else one_line(told)


def notify_type(message: Message) -> NotifyType:
    """Return how loud a message is: failure, warning, info; success where it says that something is over."""
    return NotifyType.SUCCESS if _only_closes(message) else _TYPES[message.severity]


def _only_closes(message: Message) -> bool:
    return bool(message.closes) and message.severity not in _CALLS


def _open(url: str) -> NotifyBase | None:
    # Without pictures: they would be fetched from elsewhere by the reader.
    asset = AppriseAsset(app_id="ops-pipelines", app_desc="", app_url="", image_url_mask="", image_url_logo="")
    opened = Apprise.instantiate(url, asset=asset)
    return opened if isinstance(opened, NotifyBase) else None


def _open_pager(url: str, message: Message, *, cluster_name: str) -> tuple[NotifyBase, ...]:
    """Return one service a deed: a call for what needs somebody, an end for each thread that is over."""
    deeds = [(thread, PagerDutyAction.RESOLVE) for thread in message.closes]
    if message.severity in _CALLS and message.thread not in message.closes:
        deeds.append((message.thread, PagerDutyAction.TRIGGER))
    addresses = [link.url for link in message.links if is_address(link.url)]
    pagers: list[NotifyBase] = []
    for thread, action in deeds:
        pager = _open(url)
        assert isinstance(pager, NotifyPagerDuty)  # the same URL was opened before
        pager.dedup = f"ops-pipelines/{cluster_name}/{thread}"[:255]
        pager.action = action
        pager.click = addresses[0] if addresses else pager.click
        pager.details.setdefault("message", one_line(message.key))
        pagers.append(pager)
    return tuple(pagers)
