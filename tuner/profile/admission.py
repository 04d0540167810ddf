"""Limits on what a server lets in, derived from what users wait for. Pure.

Beyond them vLLM answers 503 at once instead of letting everybody wait longer than the SLO allows.
"""

from tuner.engines.scheduler.state import StepLaw
from tuner.profile.profile import Admission, Decision, Promise
from tuner.twin.law import prompt_s


def limits(
    decision: Decision, promise: Promise, law: StepLaw | None, *, token_budget: int
) -> Admission | None:
    """Return the limits for the decision's SLO; None without a limit on the TTFT or a law.

    ``max_num_queued_tokens`` = TTFT limit x prefill throughput: that many prompt tokens are
    computed before a request that comes now has waited too long. The throughput is that of
    iterations with every slot decoding and the rest of the token budget prefilling.

    ``max_num_queued_reqs`` = slots + those that come free within the TTFT limit, when all of them
    decode outputs of mean length. vLLM calls it a coarse valve; the other one guards the TTFT.
    """
    limit_ms = decision.slo.ttft_ms
    if limit_ms is None or law is None:
        return None
    slots = min(decision.max_num_seqs, token_budget - 1)
    law = law.up_to(slots)
    prefill = token_budget - slots
    tokens_per_s = prefill / max(prompt_s(law, prefill, decode_seqs=slots), 1e-9)
    outputs = promise.output_tokens_per_s / max(promise.requests_per_s, 1e-9)
    holding_s = max(outputs, 1.0) * float(law.decode_s[slots])
    limit_s = limit_ms / 1000
    tokens = max(1, int(limit_s * tokens_per_s))
    requests = slots + int(slots * limit_s / max(holding_s, 1e-9))
    of_tokens = (
        f"max_num_queued_tokens {tokens}: a TTFT limit of {limit_ms:g} ms x "
        f"{tokens_per_s:.0f} prompt tokens/s beside {slots} decoding sequences"
    )
    of_requests = (
        f"max_num_queued_reqs {requests}: {slots} slots, and those that come free within "
        f"{limit_ms:g} ms when each is held for {holding_s:.3g} s"
    )
    return Admission(
        max_num_queued_tokens=tokens,
        max_num_queued_reqs=requests,
        reasons=[of_tokens, of_requests],
    )
