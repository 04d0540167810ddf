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
from tuner.engines.scheduler.fast_forward import fast_forward
from tuner.engines.scheduler.queue import (
    allocate,
    arrival_s,
    arrive,
    lacking,
    leave,
    let_go,
    preempt,
    recover,
    release,
    total,
    wait,
)
from tuner.engines.scheduler.state import Noise, Record, Scheduler, StepLaw
from tuner.system.jit import compiled_in_place, inlined


@inlined
def _count(iteration: Record, request: Record, tokens: int) -> None:
    """Enter a scheduled request into the iteration: one decode step, or (re)computed prompt."""
    request["scheduled"] = tokens
    left = request["input_length"] + request["generated"] - request["computed"]
    if request["generated"] > 0 and left == 1:
        iteration["decode_seqs"] += 1
        iteration["context_tokens"] += request["computed"]
    else:
        iteration["prefill_seqs"] += 1
        iteration["prefill_tokens"] += tokens
        iteration["prefill_context"] += tokens * request["computed"]


@inlined
def _schedule_running(scheduler: Scheduler, budget: int) -> int:
    """Schedule the running requests; return the budget left, or -1 after a preemption."""
    state, requests, running = scheduler.state[0], scheduler.requests, scheduler.running
    iteration = scheduler.iteration[0]
    preempted = False
    i = 0
    while i < state["running"] and budget > 0:
        request = requests[running[i]]
        if request["status"] == its.FINISHED:
            i += 1
            continue
        left = request["input_length"] + request["generated"] - request["computed"]
        tokens = min(left, budget)
        while not allocate(state, request, tokens):
            preempted = True
            state["running"] -= 1
            last = running[state["running"]]
            victim = requests[last]
            iteration["preemptions"] += 1
            iteration["recomputed_tokens"] += victim["computed"]
            if victim["status"] == its.FINISHED:  # it waits until its last token is there
                release(state, victim)
                state["finished"] -= 1
                state["gone"] += 1
            else:
                preempt(state, victim)
                wait(state, requests, last, True)
            if state["running"] == i:
                return -1
        _count(iteration, request, tokens)
        budget -= tokens
        i += 1
    return -1 if preempted else budget


@inlined
def _admit(scheduler: Scheduler, budget: int) -> None:
    """Admit waiting requests, first come first served, while slots, budget and blocks last."""
    state, requests, running = scheduler.state[0], scheduler.requests, scheduler.running
    while state["waiting"] > 0 and budget > 0 and state["running"] < state["max_num_seqs"]:
        row = state["first_waiting"]
        request = requests[row]
        recover(state, request)
        left = request["input_length"] + request["generated"] - request["computed"]
        tokens = min(left, budget)
        if state["reserves_prompts"] and lacking(state, request, left) > state["free_blocks"]:
            return
        if not allocate(state, request, tokens):
            return
        leave(state, requests, row)
        request["status"] = its.RUNNING
        if np.isnan(request["scheduled_s"]):
            request["scheduled_s"] = state["now"]
        running[state["running"]] = row
        state["running"] += 1
        _count(scheduler.iteration[0], request, tokens)
        budget -= tokens


@inlined
def _schedule(scheduler: Scheduler) -> None:
    """Decide what the next iteration computes. Something runs or waits, so it is not empty."""
    state, iteration = scheduler.state[0], scheduler.iteration[0]
    iteration["decode_seqs"] = iteration["context_tokens"] = 0
    iteration["prefill_seqs"] = iteration["prefill_tokens"] = iteration["prefill_context"] = 0
    iteration["preemptions"] = iteration["recomputed_tokens"] = 0
    requests, now_s = scheduler.requests, state["now"]
    while True:
        budget = _schedule_running(scheduler, state["max_num_batched_tokens"])
        _admit(scheduler, budget)
        iteration["running"] = state["running"]
        iteration["waiting"] = state["waiting"] + state["gone"]
        iteration["kv_blocks_used"] = state["kv_blocks"] - state["free_blocks"]
        state["gone"] = 0
        let_go(state, requests, scheduler.running)
        if iteration["decode_seqs"] + iteration["prefill_seqs"] > 0:
            state["seen_s"] = now_s
            return
        arrive(state, requests, now_s)


@inlined
def _duration_s(law: StepLaw, noise: Noise, state: Record, iteration: Record) -> float:
    """Return what the law says of the iteration, under the noise of the moment."""
    prefill = iteration["prefill_tokens"]
    seconds = (
        law.decode_s[iteration["decode_seqs"]]
        + law.prefill_token_s * prefill
        + law.prefill_token_squared_s * prefill * prefill
        + law.prefill_seq_s * iteration["prefill_seqs"]
        + law.context_token_s * iteration["context_tokens"]
        + law.prefill_context_s * iteration["prefill_context"]
    )
    if noise.slowdown.size > 0:
        place = int((state["now"] - noise.begin_s) / noise.grid_s)
        seconds *= noise.slowdown[min(max(place, 0), noise.slowdown.size - 1)]
    if noise.jitter.size > 0:
        seconds *= noise.jitter[state["jitter"]]
        state["jitter"] += 1
    while noise.stall_at_s[state["stall"]] < state["now"]:
        state["stall"] += 1
    undisturbed = state["now"] + seconds
    while noise.stall_at_s[state["stall"]] < undisturbed:
        seconds += noise.stall_s[state["stall"]]
        state["stall"] += 1
    return float(seconds)


@inlined
def _finish_iteration(scheduler: Scheduler) -> bool:
    """Hand out the iteration's tokens; return whether a request finished."""
    state, running, tokens = scheduler.state[0], scheduler.running, scheduler.tokens
    now = state["now"] = state["end"]
    state["in_flight"] = 0
    if scheduler.log.size > 0:
        scheduler.log[state["logged"]] = scheduler.iteration[0]
        state["logged"] += 1
    kept, finished = 0, False
    for row in running[: state["running"]]:
        request = scheduler.requests[row]
        request["computed"] += request["scheduled"]
        request["scheduled"] = 0
        if request["computed"] == request["input_length"] + request["generated"]:
            request["generated"] += 1
            request["last_token_s"] = now
            if request["generated"] == 1:
                request["first_token_s"] = now
            if tokens.row.size > 0:
                tokens.row[state["tokens"]] = row
                tokens.at_s[state["tokens"]] = now
                state["tokens"] += 1
            if request["generated"] == request["output_length"]:
                request["status"] = its.FINISHED
                finished = True
                if not state["async_scheduling"]:
                    release(state, request)
                    continue
                state["finished"] += 1
        running[kept] = row
        kept += 1
    state["running"] = kept
    return finished


@inlined
def _wake(scheduler: Scheduler, until: float) -> bool:
    """Let the requests that are due wait, jumping over idle time; is there work before `until`?"""
    state, requests = scheduler.state[0], scheduler.requests
    while state["now"] < until:
        arrive(state, requests, state["seen_s"] if state["async_scheduling"] else state["now"])
        if state["running"] - state["finished"] + state["waiting"] > 0:
            return True
        let_go(state, requests, scheduler.running)  # nothing is under way
        next_s = arrival_s(state, requests)
        if next_s >= until:
            return False
        state["now"] = state["seen_s"] = max(state["now"], next_s)
    return False


@inlined
def _begin_iteration(scheduler: Scheduler, law: StepLaw, noise: Noise) -> int:
    """Put the next iteration into flight, or return what it lacks."""
    state, iteration = scheduler.state[0], scheduler.iteration[0]
    log, tokens, jitter = scheduler.log.size, scheduler.tokens.row.size, noise.jitter.size
    if log > 0 and state["logged"] == log:
        return its.FULL
    if tokens > 0 and state["tokens"] + scheduler.running.size > tokens:
        return its.FULL
    if state["now"] >= noise.end_s or (jitter > 0 and state["jitter"] == jitter):
        return its.OUT_OF_NOISE
    _schedule(scheduler)
    iteration["start_s"] = state["now"]
    iteration["duration_s"] = _duration_s(law, noise, state, iteration)
    state["end"] = state["now"] + iteration["duration_s"]
    state["in_flight"] = 1
    state["preemptions"] += iteration["preemptions"]
    state["recomputed_tokens"] += iteration["recomputed_tokens"]
    total(state, iteration["duration_s"], 1, iteration["running"], iteration["kv_blocks_used"])
    return its.REACHED


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
        if state["in_flight"]:
            if state["end"] > until:
                return its.REACHED
            if _finish_iteration(scheduler) and stop_at_finish:
                return its.DONE
        if unseen and state["running"] > 0:
            fast_forward(scheduler, law, until)
        if not _wake(scheduler, until):
            return its.REACHED
        reason = _begin_iteration(scheduler, law, noise)
    return reason


@compiled_in_place
def abort(scheduler: Scheduler, row: int) -> None:
    """Forget a request; the iteration in flight runs on, and hands it no token."""
    state, requests, running = scheduler.state[0], scheduler.requests, scheduler.running
    request = requests[row]
    if request["status"] == its.WAITING:
        leave(state, requests, row)
    elif request["status"] == its.RUNNING:
        kept = 0
        for other in running[: state["running"]]:
            if other != row:
                running[kept] = other
                kept += 1
        state["running"] = kept
    request["status"] = its.ABORTED
    release(state, request)
