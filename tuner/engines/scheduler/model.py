"""A discrete-event model of vLLM V1's scheduler, compiled, for the simulated engine and the twin.

The order of scheduling is vLLM's. Running requests come first, each computing min(tokens left,
budget left). When KV blocks are short the last running request is preempted: its computed tokens
fall to 0, and it goes to the front of waiting. If nothing was preempted, waiting requests are
admitted first come first served. A request whose computed tokens reach prompt + generated gets one
token when the iteration ends.

State is arrays, changed in place: the same code serves requests that arrive one by one
(``engines.sim``) and a whole trace in one call (``twin.simulation``).
"""

import numpy as np

from tuner.engines.scheduler import state as its
from tuner.engines.scheduler.state import Ints, Noise, Record, Records, Scheduler, StepLaw
from tuner.system.jit import compiled_in_place, inlined

# The waiting queue, KV blocks and totals


@compiled_in_place
def _lacking(state: Record, request: Record, tokens: int) -> int:
    """Return how many blocks more a request needs for that many more computed tokens."""
    size = state.block_size
    return int((request.computed + tokens + size - 1) // size - request.blocks)


@compiled_in_place
def _allocate(state: Record, request: Record, tokens: int) -> bool:
    """Give a request the blocks for that many more computed tokens, if there are enough."""
    more = _lacking(state, request, tokens)
    if more > state.free_blocks:
        return False
    state.free_blocks -= more
    state.given_blocks += more
    request.blocks += more
    return True


@compiled_in_place
def _release(state: Record, request: Record) -> None:
    """Take the blocks from a request that left running."""
    state.free_blocks += request.blocks
    request.blocks = state.blocked = 0


@compiled_in_place
def _arrival_s(state: Record, requests: Records) -> float:
    """Return when the next request reaches the scheduler, or infinity."""
    row = state.arrived
    return float(requests[row].queued_s) if row < state.rows else its.NEVER


@compiled_in_place
def _leave(state: Record, requests: Records, running: Ints, status: int) -> None:
    """Take slot and blocks from the running requests of a status."""
    kept = 0
    for row in running[: state.running]:
        if requests[row].status == status:
            _release(state, requests[row])
        else:
            running[kept] = row
            kept += 1
    state.running = kept


@compiled_in_place
def let_go(state: Record, requests: Records, running: Ints) -> None:
    """Free slots and blocks of those who finished: at once, or while the scheduler was a batch
    ahead."""
    if state.finished > 0:
        _leave(state, requests, running, its.FINISHED)
        state.finished = 0


@compiled_in_place
def _arrive(scheduler: Scheduler, until_s: float) -> None:
    """Let those wait who have reached the scheduler by then."""
    state, requests = scheduler.state[0], scheduler.requests
    while _arrival_s(state, requests) <= until_s:
        if requests[state.arrived].status == its.COMING:
            requests[state.arrived].status = its.WAITING
            scheduler.queue[state.head + state.waiting] = state.arrived
            state.waiting += 1
        state.arrived += 1


@compiled_in_place
def _total(state: Record, seconds: float, running: int, used: int) -> None:
    """Enter iterations of one batch into the totals."""
    state.busy_s += seconds
    state.block_s += seconds * used
    state.most_blocks = max(state.most_blocks, used)
    state.most_running = max(state.most_running, running)


# One iteration


@inlined
def _count(iteration: Record, request: Record, tokens: int) -> None:
    """Enter a scheduled request into the iteration: one decode step, or (re)computed prompt."""
    request.scheduled = tokens
    left = request.input_length + request.generated - request.computed
    if request.generated > 0 and left == 1:
        iteration.decode_seqs += 1
        iteration.context_tokens += request.computed
    else:
        iteration.prefill_seqs += 1
        iteration.prefill_tokens += tokens
        iteration.prefill_context += tokens * request.computed


@inlined
def _schedule_running(scheduler: Scheduler, budget: int) -> int:
    """Schedule the running requests; return the budget left, or -1 after a preemption."""
    state, requests, running = scheduler.state[0], scheduler.requests, scheduler.running
    iteration = scheduler.iteration[0]
    preempted = False
    i = 0
    while i < state.running and budget > 0:
        request = requests[running[i]]
        if request.status == its.FINISHED:
            i += 1
            continue
        left = request.input_length + request.generated - request.computed
        tokens = min(left, budget)
        while not _allocate(state, request, tokens):
            preempted = True
            state.running -= 1
            last = running[state.running]
            victim = requests[last]
            iteration.preemptions += 1
            iteration.recomputed_tokens += victim.computed
            if victim.status == its.FINISHED:  # it waits until its last token is there
                state.finished -= 1
                state.gone += 1
            else:
                victim.preemptions += 1
                victim.lost, victim.lost_at = victim.computed, state.given_blocks
                victim.computed, victim.status = 0, its.WAITING
                state.head -= 1  # the front, where there is room: it has left there before
                state.waiting += 1
                scheduler.queue[state.head] = last
            _release(state, victim)
            if state.running == i:
                return -1
        _count(iteration, request, tokens)
        budget -= tokens
        i += 1
    return -1 if preempted else budget


@inlined
def _admit(scheduler: Scheduler, budget: int) -> None:
    """Admit waiting requests, first come first served, while slots, budget and blocks last."""
    state, requests, running = scheduler.state[0], scheduler.requests, scheduler.running
    size = state.block_size
    while state.waiting > 0 and budget > 0 and state.running < state.max_num_seqs:
        row = scheduler.queue[state.head]
        request = requests[row]
        if state.prefix_caching and request.lost > 0:
            # Blocks are given out again in the order in which they came free, and of one request
            # the last ones first: as many as were given out since the preemption are gone.
            gone = state.given_blocks - request.lost_at
            request.computed = size * max(0, request.lost // size - gone)
        left = request.input_length + request.generated - request.computed
        tokens = min(left, budget)
        reserved = left if state.reserves_prompts else tokens
        if _lacking(state, request, reserved) > state.free_blocks:
            state.blocked = 1
            return
        _allocate(state, request, tokens)
        state.head += 1
        state.waiting -= 1
        request.status = its.RUNNING
        if np.isnan(request.scheduled_s):
            request.scheduled_s = state.now
        running[state.running] = row
        state.running += 1
        _count(scheduler.iteration[0], request, tokens)
        budget -= tokens


@inlined
def _schedule(scheduler: Scheduler) -> None:
    """Decide what the next iteration computes. Something runs or waits, so it is not empty."""
    state, iteration = scheduler.state[0], scheduler.iteration[0]
    iteration.decode_seqs = iteration.context_tokens = 0
    iteration.prefill_seqs = iteration.prefill_tokens = iteration.prefill_context = 0
    iteration.preemptions = iteration.recomputed_tokens = 0
    requests, now_s = scheduler.requests, state.now
    while True:
        budget = _schedule_running(scheduler, state.max_num_batched_tokens)
        _admit(scheduler, budget)
        iteration.running = state.running
        iteration.waiting = state.waiting + state.gone
        iteration.kv_blocks_used = state.kv_blocks - state.free_blocks
        state.gone = 0
        let_go(state, requests, scheduler.running)
        if iteration.decode_seqs + iteration.prefill_seqs > 0:
            state.seen_s = now_s
            return
        _arrive(scheduler, now_s)


@inlined
def _duration_s(law: StepLaw, noise: Noise, state: Record, iteration: Record) -> float:
    """Return what the law says of the iteration, under the noise of the moment."""
    prefill = iteration.prefill_tokens
    seconds = (
        law.decode_s[iteration.decode_seqs]
        + law.prefill_token_s * prefill
        + law.prefill_token_squared_s * prefill * prefill
        + law.prefill_seq_s * iteration.prefill_seqs
        + law.context_token_s * iteration.context_tokens
        + law.prefill_context_s * iteration.prefill_context
    )
    if noise.slowdown.size > 0:
        place = min(int(state.now / noise.grid_s), noise.slowdown.size - 1)
        seconds *= noise.slowdown[place]
    if noise.jitter.size > 0:
        seconds *= noise.jitter[state.jitter % noise.jitter.size]
        state.jitter += 1
    undisturbed = state.now + seconds
    while noise.stall_at_s[state.stall] < undisturbed:
        if noise.stall_at_s[state.stall] >= state.now:
            seconds += noise.stall_s[state.stall]
        state.stall += 1
    return float(seconds)


@inlined
def _finish_iteration(scheduler: Scheduler) -> bool:
    """Hand out the iteration's tokens; return whether a request finished."""
    state, running, tokens = scheduler.state[0], scheduler.running, scheduler.tokens
    now = state.now = state.end
    state.in_flight = 0
    if scheduler.log.size > 0:
        scheduler.log[state.logged] = scheduler.iteration[0]
        state.logged += 1
    ended = 0
    for row in running[: state.running]:
        request = scheduler.requests[row]
        request.computed += request.scheduled
        request.scheduled = 0
        if request.computed == request.input_length + request.generated:
            request.generated += 1
            request.last_token_s = now
            if request.generated == 1:
                request.first_token_s = now
            if tokens.row.size > 0:
                tokens.row[state.tokens] = row
                tokens.at_s[state.tokens] = now
                state.tokens += 1
            if request.generated == request.output_length:
                request.status = its.FINISHED
                ended += 1
    state.finished += ended
    if not state.async_scheduling:
        let_go(state, scheduler.requests, running)
    return ended > 0


@inlined
def _wake(scheduler: Scheduler, until: float) -> bool:
    """Let the requests that are due wait, jumping over idle time; is there work before `until`?"""
    state, requests = scheduler.state[0], scheduler.requests
    while state.now < until:
        _arrive(scheduler, state.seen_s if state.async_scheduling else state.now)
        if state.running - state.finished + state.waiting > 0:
            return True
        let_go(state, requests, scheduler.running)  # nothing is under way
        next_s = _arrival_s(state, requests)
        if next_s >= until:
            return False
        state.now = state.seen_s = max(state.now, next_s)
    return False


@inlined
def _begin_iteration(scheduler: Scheduler, law: StepLaw, noise: Noise) -> int:
    """Put the next iteration into flight, or return what it lacks."""
    state, iteration = scheduler.state[0], scheduler.iteration[0]
    log, tokens = scheduler.log.size, scheduler.tokens.row.size
    # length 0: not wanted
    if 0 < log == state.logged or 0 < tokens < state.tokens + scheduler.running.size:
        return its.FULL
    _schedule(scheduler)
    iteration.start_s = state.now
    iteration.duration_s = _duration_s(law, noise, state, iteration)
    state.end = state.now + iteration.duration_s
    state.in_flight = 1
    state.recomputed_tokens += iteration.recomputed_tokens
    _total(state, iteration.duration_s, iteration.running, iteration.kv_blocks_used)
    return its.REACHED


# All iterations of a batch that does not change, in one step: most only decode, while nobody comes
# or leaves, and their durations follow from the number of context tokens alone


@compiled_in_place
def _steady(state: Record, requests: Records, running: Ints) -> tuple[int, int]:
    """Return for how many iterations at most all that run decode and none finishes, and their
    context tokens."""
    most, context = its.FOREVER, 0
    for row in running[: state.running]:
        request = requests[row]
        left = request.input_length + request.generated - request.computed
        if left > 1 or request.generated == 0:
            return 0, 0
        most = min(most, request.output_length - request.generated - 1)
        context += request.computed
    # A token more per request takes at most a block more per request.
    blocks = state.free_blocks // state.running
    return min(most, blocks * state.block_size), context


@compiled_in_place
def _fast_forward(scheduler: Scheduler, law: StepLaw, until: float) -> None:
    """Run many iterations of a steady batch at once, to the same times as one by one.

    Only the totals are kept of them: not with a log, a token list or noise.
    """
    state, requests, running = scheduler.state[0], scheduler.requests, scheduler.running
    batch, closed = state.running, state.blocked or state.running == state.max_num_seqs
    if batch > state.max_num_batched_tokens or state.finished > 0:
        return
    if state.waiting > 0 and not closed:
        return
    most, context = _steady(state, requests, running)
    next_s = its.NEVER if closed else _arrival_s(state, requests)
    now, used, done = state.now, state.kv_blocks - state.free_blocks, 0
    seen = state.seen_s if state.async_scheduling else now
    while done < most and next_s > seen:
        end = now + (law.decode_s[batch] + law.context_token_s * context)
        if end > until:
            break
        seen = now if state.async_scheduling else end
        now = end
        done += 1
        context += batch
    if done == 0:
        return
    for row in running[:batch]:
        request = requests[row]
        _allocate(state, request, done)
        request.computed += done
        request.generated += done
        request.last_token_s = now
    used = (used + state.kv_blocks - state.free_blocks) // 2
    _total(state, now - state.now, batch, used)
    state.now, state.seen_s = now, seen


# From outside


@compiled_in_place
def advance(
    scheduler: Scheduler, law: StepLaw, noise: Noise, until: float, stop_at_finish: bool
) -> int:
    """Run iterations that begin before ``until`` and end by then; return why it came back.

    An iteration that ends later stays in flight. ``stop_at_finish``: come back when one did.
    """
    state = scheduler.state[0]
    sinks = scheduler.log.size + scheduler.tokens.row.size
    disturbed = noise.jitter.size + noise.slowdown.size + noise.stall_s.size - 1
    unseen = sinks + disturbed == 0
    reason = its.REACHED
    while reason == its.REACHED:
        if state.in_flight:
            if state.end > until:
                return its.REACHED
            if _finish_iteration(scheduler) and stop_at_finish:
                return its.DONE
        if unseen and state.running > 0:
            _fast_forward(scheduler, law, until)
        if not _wake(scheduler, until):
            return its.REACHED
        reason = _begin_iteration(scheduler, law, noise)
    return reason


@compiled_in_place
def abort(scheduler: Scheduler, row: int) -> None:
    """Forget a request; the iteration in flight runs on, and hands it no token."""
    state, requests = scheduler.state[0], scheduler.requests
    request = requests[row]
    if request.status == its.WAITING:
        place = state.head
        while scheduler.queue[place] != row:
            place += 1
        state.waiting -= 1
        for behind in range(place, state.head + state.waiting):
            scheduler.queue[behind] = scheduler.queue[behind + 1]
    request.status, state.blocked = its.ABORTED, 0
    _leave(state, requests, scheduler.running, its.ABORTED)
