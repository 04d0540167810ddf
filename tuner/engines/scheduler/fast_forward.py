"""Run all iterations of a batch that does not change in one step, to save time.

Most iterations only decode, while nobody comes or leaves: their durations follow from the number
of context tokens alone.
"""

from tuner.engines.scheduler import state as its
from tuner.engines.scheduler.queue import allocate, arrival_s, lacking, recover, total
from tuner.engines.scheduler.state import Ints, Record, Records, Scheduler, StepLaw
from tuner.system.jit import compiled_in_place


@compiled_in_place
def _is_closed(state: Record, requests: Records) -> bool:
    """Whether nobody can be admitted as long as nobody leaves."""
    if state["running"] == state["max_num_seqs"]:
        return True
    if state["waiting"] == 0:
        return False
    request = requests[state["first_waiting"]]
    recover(state, request)
    left = request["input_length"] + request["generated"] - request["computed"]
    if not state["reserves_prompts"]:
        left = min(left, state["max_num_batched_tokens"] - state["running"])
    return bool(lacking(state, request, left) > state["free_blocks"])


@compiled_in_place
def _steady(state: Record, requests: Records, running: Ints) -> tuple[int, int]:
    """Return for how many iterations at most all that run decode and none finishes, and their
    context tokens."""
    most, context = its.FOREVER, 0
    for row in running[: state["running"]]:
        request = requests[row]
        left = request["input_length"] + request["generated"] - request["computed"]
        if left > 1 or request["generated"] == 0:
            return 0, 0
        most = min(most, request["output_length"] - request["generated"] - 1)
        context += request["computed"]
    # A token more per request takes at most a block more per request.
    blocks = state["free_blocks"] // state["running"]
    return min(most, blocks * state["block_size"]), context


@compiled_in_place
def fast_forward(scheduler: Scheduler, law: StepLaw, until: float) -> None:
    """Run many iterations of a steady batch at once, to the same times as one by one.

    Only the totals are kept of them: not with a log, a token list or noise.
    """
    state, requests, running = scheduler.state[0], scheduler.requests, scheduler.running
    batch = state["running"]
    closed = _is_closed(state, requests)
    if batch > state["max_num_batched_tokens"] or state["finished"] > 0:
        return
    if state["waiting"] > 0 and not closed:
        return
    most, context = _steady(state, requests, running)
    next_s = its.NEVER if closed else arrival_s(state, requests)
    now, used, done = state["now"], state["kv_blocks"] - state["free_blocks"], 0
    seen = state["seen_s"] if state["async_scheduling"] else now
    while done < most and next_s > seen:
        end = now + (law.decode_s[batch] + law.context_token_s * context)
        if end > until:
            break
        seen = now if state["async_scheduling"] else end
        now = end
        done += 1
        context += batch
    if done == 0:
        return
    for row in running[:batch]:
        request = requests[row]
        allocate(state, request, done)
        request["computed"] += done
        request["generated"] += done
        request["last_token_s"] = now
    used = (used + state["kv_blocks"] - state["free_blocks"]) // 2
    total(state, now - state["now"], done, batch, used)
    state["now"], state["seen_s"] = now, seen
