"""The record of changed limits: a line in the audit, and one in vLLM's log."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tuner.engines.server.cap_schedule import CapSchedule
from tuner.engines.server.peer import Peer
from tuner.engines.server.protocol import About, Limits
from tuner.live.control import socket_files
from tuner.live.control.socket_files import Place

log = logging.getLogger("vllm.tuner")


@dataclass(frozen=True, slots=True)
class LiveRecord:
    at: Place
    about: About
    now: Callable[[], datetime]

    def write(  # noqa: PLR0913 - one parameter a field
        self,
        event: str,
        before: Limits,
        after: Limits,
        *,
        reason: str,
        peer: Peer | None = None,
        profile: str | None = None,
        schedule: CapSchedule | None = None,
        override: Sequence[str] = (),
    ) -> None:
        """Put a change into the audit and into vLLM's log. Without a peer it is the server's own
        doing. Raises TargetError: then the change must not be made."""
        by = Peer(os.getpid(), os.geteuid()) if peer is None else peer
        entry = {
            "when": self.now().isoformat(timespec="milliseconds"),
            "event": event,
            "uid": by.uid,
            "pid": by.pid,
            "server_pid": self.about.pid,
            "rank": self.about.rank,
            "before": before.model_dump(),
            "after": after.model_dump(),
            "profile": profile,
            "schedule": None if schedule is None else schedule.model_dump(),
            "reason": reason,
            "override": list(override),
        }
        socket_files.append(self.at, entry)
        log.info(
            "tuner: live control: %s: max_num_seqs %d -> %d, max_num_batched_tokens %d -> %d "
            "(pid %d of user %d)",
            event,
            *(before.max_num_seqs, after.max_num_seqs),
            *(before.max_num_batched_tokens, after.max_num_batched_tokens),
            *(by.pid, by.uid),
        )
