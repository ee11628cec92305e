"""Labels of kernels: short enough, and still different."""

from __future__ import annotations

from hpcsweep.analysis.roofline.labels import labels, shortened

KERNEL = (
    "void at::native::implicit_convolve_sgemm<float, (int)128, (bool)0, at::Array<char *, {}>>"
    "(int, const T1 *, void (*)(int))"
)


def test_long_texts_lose_their_middle():
    """Both ends tell names apart; the width is kept to the character."""
    assert shortened("abc", 3) == "abc"
    assert shortened("a" * 20 + "b" * 20, 11) == "aaaaa...bbb"
    assert [len(shortened("x" * 99, width)) for width in range(8, 60)] == list(range(8, 60))


def test_a_kernel_is_labelled_without_what_every_kernel_has():
    """Return type, namespaces, casts and parameters."""
    name = KERNEL.format(2)
    label = "implicit_convolve_sgemm<float, 128, 0, at::Array<char *, 2>>"
    assert labels([name], 80) == {name: label}
    assert labels(["(anonymous namespace)::k(int)", "sgemm"], 80) == {
        "(anonymous namespace)::k(int)": "k",
        "sgemm": "sgemm",
    }


def test_labels_differ_where_what_is_left_of_names_does_not():
    """Otherwise two kernels would look like one."""
    names = ["void a::k<1>(int)", "void b::k<1>(int)", "void c::k<1>(float)"]
    assert list(labels(names, 20).values()) == ["k<1>", "k<1> #2", "k<1> #3"]
