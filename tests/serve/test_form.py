"""Forms: the file is found, what is no form is refused, and neither takes long, whatever was thought of."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortcaps.serve.form import MAX_PARTS, FormError, find_file, find_files

KIND = "multipart/form-data; boundary=x"


def form(*parts: tuple[bytes, bytes], boundary: bytes = b"x") -> bytes:
    """A form of parts, each with its headers and its content."""
    written = (b"--" + boundary + b"\r\n" + head + b"\r\n\r\n" + content + b"\r\n" for head, content in parts)
    return b"".join(written) + b"--" + boundary + b"--\r\n"


def disposition(name: str = "image", more: str = '; filename="a.png"') -> bytes:
    return f'Content-Disposition: form-data; name="{name}"{more}'.encode()


@given(
    boundary=st.text("abcdefXYZ0123456789'()+_-./:=?", min_size=1, max_size=70),
    content=st.binary(),
    quoted=st.booleans(),
)
def test_a_file_comes_out_as_it_went_in(boundary: str, content: bytes, quoted: bool) -> None:
    if b"\r\n--" + boundary.encode() in b"\r\n" + content:
        return
    body = form((disposition("text", ""), b"x"), (disposition(), content), boundary=boundary.encode())
    given_boundary = f'"{boundary}"' if quoted else boundary
    assert find_file(f"Multipart/Form-Data; Boundary={given_boundary}", body, b"image") == content


@given(body=st.binary(max_size=60), start=st.sampled_from([b"", b"--x\r\n", b"--x\r\nContent-Disposition: form-data"]))
def test_what_is_no_form_is_refused_and_nothing_else_happens(body: bytes, start: bytes) -> None:
    with contextlib.suppress(FormError):
        find_file(KIND, start + body, b"image")


def test_what_is_asked_for_is_a_file_of_that_name() -> None:
    assert find_file(KIND, form((disposition("image", ""), b"text")), b"image") is None
    assert find_file(KIND, form((disposition("picture"), b"x")), b"image") is None
    assert find_file(KIND, form((b"X-Comment: a", b"x")), b"image") is None
    hidden = disposition("text", '; filename="; name=\\"image\\""')
    assert find_file(KIND, form((hidden, b"x")), b"image") is None
    wrapped = b"Content-Type: image/png\r\ncontent-disposition:form-data;filename*=utf-8''a;name=image"
    assert find_file(KIND, form((wrapped, b"picture")), b"image") == b"picture"


def test_all_files_of_that_name_come_in_their_order() -> None:
    parts = [(disposition(), b"first"), (disposition("text", ""), b"x"), (disposition(), b"second")]
    assert list(find_files(KIND, form(*parts), b"image")) == [b"first", b"second"]
    assert list(find_files(KIND, form(*parts), b"image", max_parts=3)) == [b"first", b"second"]
    with pytest.raises(FormError, match="more than 2 parts"):
        list(find_files(KIND, form(*parts), b"image", max_parts=2))


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("multipart/form-data", form(), "no boundary"),
        ('multipart/form-data; boundary=""', form(), "no boundary"),
        (f"multipart/form-data; boundary={'x' * 71}", form(), "no boundary"),
        (KIND, b"", "does not begin with its boundary"),
        (KIND, b"--xy\r\n", "not followed by a line"),
        (KIND, form((disposition(), b"content"))[:-9], "breaks off"),
        (KIND, form((b"A: " + b"a" * 3_000, b"x")), "do not end within 2,048 bytes"),
        (KIND, form(*[(disposition("text", ""), b"")] * (MAX_PARTS + 1)), "more than 8 parts"),
    ],
)
def test_broken_forms_are_refused_with_the_reason(kind: str, body: bytes, reason: str) -> None:
    with pytest.raises(FormError, match=reason):
        find_file(kind, body, b"image")


MEGABYTES = 8_000_000
HOSTILE = {
    "codec of quadratic time for the form": (f"{KIND}; charset=punycode", disposition("9" * 1_900)),
    "codec of quadratic time for a part": (KIND, disposition("text", "; charset=punycode")),
    "parameters without end": (KIND, b"Content-Disposition: form-data" + b'; a="' * 400),
    "backslashes": (KIND, b'Content-Disposition: form-data; name="' + b"\\" * 1_900),
    "folded lines": (KIND, b"Content-Disposition: form-data;\r\n" + b" \r\n " * 400),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_no_form_takes_long(case: str) -> None:
    kind, head = HOSTILE[case]
    many = (b"--x\r\n" + head + b"\r\n\r\nx\r\n") * (MEGABYTES // (len(head) + 12))
    long = form((head, b"\r\n--" * (MEGABYTES // 4)))
    for body in (many, long):
        started = time.process_time()
        with contextlib.suppress(FormError):
            list(find_files(kind, body, b"image", max_parts=1_000))
        assert time.process_time() - started < 0.5


def test_a_boundary_of_one_letter_takes_no_longer() -> None:
    for letter in (b"-", b"a"):
        body = b"--" + letter * 70 + b"\r\nA: b\r\n\r\n" + (b"\r\n--" + letter * 69) * (MEGABYTES // 73)
        started = time.process_time()
        with pytest.raises(FormError):
            find_file(f"multipart/form-data; boundary={letter.decode() * 70}", body, b"image")
        assert time.process_time() - started < 0.5
