"""How long a message may live, packed into few bits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.facts import TTL_EXACT_MS_MAX, TTL_MS_MAX, delay_ms_of, pack, priority_of, ttl_ms_of

_EDGES = [0, TTL_EXACT_MS_MAX - 1, TTL_EXACT_MS_MAX, TTL_EXACT_MS_MAX + 1, TTL_MS_MAX - 1, TTL_MS_MAX]


@given(st.sampled_from(_EDGES) | st.integers(0, TTL_MS_MAX), st.integers(0, 255), st.integers(0, 1 << 40))
def test_a_time_to_live_is_exact_or_a_moment_longer(ttl_ms: int, priority: int, delay_ms: int) -> None:
    facts = pack(True, priority, ttl_ms, delay_ms)
    kept = ttl_ms_of(facts)
    assert kept is not None
    assert ttl_ms <= kept <= ttl_ms + (127 if ttl_ms > TTL_EXACT_MS_MAX else 0)
    assert (priority_of(facts), delay_ms_of(facts)) == (priority, delay_ms)
    assert pack(True, priority, kept, delay_ms) == facts
