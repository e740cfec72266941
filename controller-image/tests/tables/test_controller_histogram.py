"""Histogram: buckets as the Prometheus text format defines them."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given
from sos_controller.core.tables.histogram import SET_UP_S, Histogram


@given(st.lists(st.floats(0, 10) | st.sampled_from(SET_UP_S)))
def test_each_bucket_counts_the_values_up_to_its_bound(values: list[float]) -> None:
    histogram = Histogram(SET_UP_S)
    for value in values:
        histogram.observe(value)
    buckets = dict(histogram.buckets())
    assert list(buckets) == [*map(str, SET_UP_S), "+Inf"]
    assert all(buckets[str(bound)] == sum(value <= bound for value in values) for bound in SET_UP_S)
    assert buckets["+Inf"] == len(values)
    assert histogram.sum == sum(values)
