"""Whatever a settings file, a recipe or an upload holds, reading it gives values, or one line that says why not."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from shortcaps.errors import RunError
from shortcaps.recipes import FOLDER
from shortcaps.recipes.recipe import read_recipe
from shortcaps.runs.config import TrainConfig, read_settings
from tests.fuzz.support import damaged, fuzz, mutated, refused_in_one_line

SETTINGS = b"""
data = "mnist"
batch-size = 64
lr = 0.1
[model]
name = "baseline"
routing = "em"
[model.settings]
capsule_channels = [2, 3, 2]
passes = 1
[run]
seed = 1
"""


@fuzz(damaged(SETTINGS))
def test_settings_files(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, refused_in_one_line(RunError):
        file = Path(folder) / "settings.toml"
        file.write_bytes(data)
        TrainConfig.of(**read_settings(file))


@fuzz(mutated(TrainConfig().to_dict()))
def test_configs(config: dict[str, Any]) -> None:
    with refused_in_one_line(RunError):
        TrainConfig.from_dict(config).make_recipe()


@fuzz(damaged(*(file.read_bytes() for file in sorted(FOLDER.glob("*.toml")))))
def test_recipes(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, refused_in_one_line(RunError):
        file = Path(folder) / "recipe.toml"
        file.write_bytes(data)
        read_recipe(file).resolve(data="mnist", model="baseline", routing="fuzzy")


FORM = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\npicture\r\n--x--\r\n'
KINDS = st.one_of(
    st.just("multipart/form-data; boundary=x"),
    damaged(b'multipart/form-data; boundary="x"; charset=punycode').map(lambda data: data.decode("latin-1")),
)


@fuzz(st.tuples(KINDS, damaged(FORM)))
def test_forms(form: tuple[str, bytes]) -> None:
    from shortcaps.serve.form import FormError, find_files

    with contextlib.suppress(FormError):
        assert all(isinstance(content, bytes) for content in find_files(*form, b"image"))


@fuzz(
    damaged(
        json.dumps({"image": "data:image/png;base64,aGVsbG8=", "x": [1, {"y": None}]}).encode(),
        json.dumps({"images": ["aGVsbG8=", "data:image/png;base64,aGVsbG8="]}).encode(),
    )
)
def test_json_uploads(body: bytes) -> None:
    from shortcaps.serve.upload import FIELD, Refused, _decoded, _json_field, _json_pictures

    with contextlib.suppress(Refused):
        assert isinstance(_decoded(_json_field(body, FIELD), FIELD), bytes)
    with contextlib.suppress(Refused):
        assert all(isinstance(picture, bytes) for picture in _json_pictures(body, 4))


REQUEST = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n"


@fuzz(st.tuples(damaged(REQUEST, CHUNKED, REQUEST + CHUNKED), st.integers(1, 200)))
def test_requests(sent: tuple[bytes, int]) -> None:
    """A request comes out whole however it arrives, or is refused; nothing else happens."""
    import h11

    from shortcaps.serve.connection import LimitedConnection

    data, size = sent
    connection = LimitedConnection(16_384)
    with contextlib.suppress(h11.RemoteProtocolError):
        for start in range(0, len(data), size):
            connection.receive_data(data[start : start + size])
            while connection.next_event() not in (h11.NEED_DATA, h11.PAUSED):
                pass
