"""How long the API server is given, and how soon it is asked again, wherever no parameter says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Times in seconds, and counts; the defaults are what serves a cluster.

    Attributes:
        connect_seconds: For a connection.
        page_seconds: For a page of a list, and for a write.
        token_seconds: After which a token file is read again; kubelets renew tokens long before they expire.
        grace_seconds: How long a watch may go on after its time before it is given up.
        steady_seconds: A watch that ended sooner, and brought nothing, was refused in effect.
        short_watches: So many in a row may end so soon if they bring something; more count as refused, too.
        first_pause_seconds: After the first failure; each further one is followed by a pause twice as long.
        quick_pause_seconds: Longest pause of the first `quick_failures`.
        quick_failures: A server that has just started answers 403 or 503 for some seconds: for about four, it is asked often.
        unanswered_pause_seconds: Longest pause while no server answers.
        absent_pause_seconds: Before looking again for a custom resource that is not installed.
        longest_retry_after_seconds: What a server may ask for with `Retry-After`.
        quiet_watches: After so many without a word everything is listed again: a server whose version is older than ours, because its
            storage was restored from a backup, is silent for ever.
    """

    connect_seconds: float = 3.0
    page_seconds: float = 30.0
    token_seconds: float = 60.0
    grace_seconds: float = 5.0
    steady_seconds: float = 1.0
    short_watches: int = 5
    first_pause_seconds: float = 0.02
    quick_pause_seconds: float = 0.1
    quick_failures: int = 50
    unanswered_pause_seconds: float = 0.5
    absent_pause_seconds: float = 30.0
    longest_retry_after_seconds: float = 60.0
    quiet_watches: int = 6
