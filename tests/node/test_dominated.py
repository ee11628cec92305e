"""What is larger than a point that ran out of memory is skipped, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.node.dominated import OutOfMemoryPoints

sizes = st.integers(1, 8)


def _axes(batch, size, **more):
    return {
        "model": "resnet18",
        "dtype": "float32",
        "batch_size": batch,
        "input_size": size,
        **more,
    }


@given(sizes, sizes, sizes, sizes)
def test_larger_in_both_is_skipped_and_smaller_in_either_is_tried(batch, size, other, another):
    """The order is that of the product of the two axes."""
    known = OutOfMemoryPoints([_axes(batch, size)])
    skipped = known.why_skip(_axes(other, another)) is not None
    assert skipped == (other >= batch and another >= size)


def test_another_value_of_any_other_axis_is_another_question():
    """A dtype, an algorithm map or a network of its own needs memory of its own."""
    known = OutOfMemoryPoints([_axes(8, 8)])
    assert known.why_skip(_axes(8, 8))
    assert known.why_skip(_axes(8, 8, dtype="float16")) is None
    assert known.why_skip(_axes(8, 8, algorithm={"default": "gemm"})) is None


def test_a_workload_without_sizes_is_never_skipped_for_another_model():
    """Axes that a point lacks count as zero."""
    known = OutOfMemoryPoints([{"model": "a"}])
    assert known.why_skip({"model": "b"}) is None
    assert known.why_skip({"model": "a"})
