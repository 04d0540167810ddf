"""Runs a server, and ends it with tuner: python -m tuner.engines.server.guardian COMMAND...

Whoever started us holds the other end of our standard input. When that closes, however it comes,
the server's whole process group is killed; when the server's first process ends, the rest of its
group is. The first line of our standard output is the group's number. Should we be killed, the
kernel kills the server's first process, and whoever started us sees our end.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
from typing import NoReturn

from tuner.system import cores

_PR_SET_PDEATHSIG = 1


def main(command: list[str], group_pipe: int) -> int:
    """Return the exit code of the command, or of the signal that ended it as a negative number."""
    child = os.fork()
    if child == 0:
        _become(command)
    with contextlib.suppress(OSError):  # it has done so, and is the command already
        os.setpgid(child, child)  # whoever reads its number may kill it at once
    os.write(group_pipe, b"%d\n" % child)
    os.close(group_pipe)
    ends = os.pidfd_open(child)
    poll = select.poll()
    poll.register(0, 0)  # only its end: nothing is sent
    poll.register(ends, select.POLLIN)
    poll.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _become(command: list[str]) -> NoReturn:
    """In the child: lead a group, die with the guardian, and be the command."""
    os.setpgid(0, 0)
    guardian = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guardian:  # it has ended in between
        os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.execvp(command[0], command)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    cores.leave_the_clients_core()
    code = main(sys.argv[1:], os.dup(1))
    if code < 0:
        with contextlib.suppress(OSError):  # not of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
