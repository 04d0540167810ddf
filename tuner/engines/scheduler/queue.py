"""The scheduler model's waiting queue, KV blocks and totals."""

from tuner.engines.scheduler import state as its
from tuner.engines.scheduler.state import Ints, Record, Records
from tuner.system.jit import compiled_in_place


@compiled_in_place
def wait(state: Record, requests: Records, row: int, front: bool) -> None:
    """Put a request at the front or at the end of waiting."""
    ahead = its.NOBODY if front else state["last_waiting"]
    behind = state["first_waiting"] if front else its.NOBODY
    requests[row]["status"] = its.WAITING
    _link(state, requests, ahead, row)
    _link(state, requests, row, behind)
    state["waiting"] += 1


@compiled_in_place
def leave(state: Record, requests: Records, row: int) -> None:
    """Take a request out of waiting."""
    _link(state, requests, requests[row]["ahead"], requests[row]["behind"])
    state["waiting"] -= 1


@compiled_in_place
def _link(state: Record, requests: Records, ahead: int, behind: int) -> None:
    """Make two requests neighbours in waiting; beyond either end there is NOBODY."""
    if ahead == its.NOBODY:
        state["first_waiting"] = behind
    else:
        requests[ahead]["behind"] = behind
    if behind == its.NOBODY:
        state["last_waiting"] = ahead
    else:
        requests[behind]["ahead"] = ahead


@compiled_in_place
def lacking(state: Record, request: Record, tokens: int) -> int:
    """Return how many blocks more a request needs for that many more computed tokens."""
    size = state["block_size"]
    return int((request["computed"] + tokens + size - 1) // size - request["blocks"])


@compiled_in_place
def allocate(state: Record, request: Record, tokens: int) -> bool:
    """Give a request the blocks for that many more computed tokens, if there are enough."""
    more = lacking(state, request, tokens)
    if more > state["free_blocks"]:
        return False
    state["free_blocks"] -= more
    state["given_blocks"] += more
    request["blocks"] += more
    return True


@compiled_in_place
def preempt(state: Record, request: Record) -> None:
    """Take all blocks from a request; what it had computed is lost, but for the prefix cache."""
    request["preemptions"] += 1
    request["lost"] = request["computed"]
    request["lost_at"] = state["given_blocks"]
    request["computed"] = 0
    release(state, request)


@compiled_in_place
def recover(state: Record, request: Record) -> None:
    """Let a preempted request find again what is left of it in the prefix cache.

    Blocks are given out again in the order in which they came free, and of one request the last
    ones first: as many as were given out since the preemption are gone.
    """
    if state["prefix_caching"] and request["lost"] > 0:
        size = state["block_size"]
        gone = state["given_blocks"] - request["lost_at"]
        request["computed"] = size * max(0, request["lost"] // size - gone)


@compiled_in_place
def release(state: Record, request: Record) -> None:
    """Take the blocks from a request that left running."""
    state["free_blocks"] += request["blocks"]
    request["blocks"] = 0


@compiled_in_place
def arrival_s(state: Record, requests: Records) -> float:
    """Return when the next request reaches the scheduler, or infinity."""
    row = state["arrived"]
    return float(requests[row]["queued_s"]) if row < state["rows"] else its.NEVER


@compiled_in_place
def let_go(state: Record, requests: Records, running: Ints) -> None:
    """Free slots and blocks of those who finished while the scheduler was a batch ahead."""
    if state["finished"] == 0:
        return
    kept = 0
    for row in running[: state["running"]]:
        if requests[row]["status"] == its.FINISHED:
            release(state, requests[row])
        else:
            running[kept] = row
            kept += 1
    state["running"] = kept
    state["finished"] = 0


@compiled_in_place
def arrive(state: Record, requests: Records, until_s: float) -> None:
    """Let those wait who have reached the scheduler by then."""
    while arrival_s(state, requests) <= until_s:
        if requests[state["arrived"]]["status"] == its.COMING:
            wait(state, requests, state["arrived"], False)
        state["arrived"] += 1


@compiled_in_place
def total(state: Record, seconds: float, iterations: int, running: int, used: int) -> None:
    """Enter iterations of one batch into the totals."""
    state["iterations"] += iterations
    state["busy_s"] += seconds
    state["running_s"] += seconds * running
    state["block_s"] += seconds * used
    state["most_blocks"] = max(state["most_blocks"], used)
    state["most_running"] = max(state["most_running"], running)
