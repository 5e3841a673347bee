"""Requests that nobody should send, as bytes: mutated pictures, forms, JSON and framing, and some that are known to hurt."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zlib
from collections.abc import Callable

from PIL import Image

CODECS = ("punycode", "idna", "utf-7", "unicode_escape", "raw_unicode_escape", "zlib_codec", "utf-16", "nonsense", "")
QUERIES = ("", "", "", "?scale=nan", "?rotation=1e999", "?details=True", "?shear=-", "?" + "a=b&" * 400, "?invert=2")


def encoded(picture: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def seeds() -> list[bytes]:
    """Small real pictures in each format that is accepted, and in two that are not."""
    noise = Image.effect_noise((48, 48), 80)
    made = [encoded(noise.convert(mode), kind) for kind in ("PNG", "JPEG", "WEBP") for mode in ("L", "RGB")]
    made += [encoded(noise.convert("RGBA"), "PNG"), encoded(noise, "JPEG", progressive=True)]
    made += [encoded(noise.convert("P"), "PNG", transparency=0), encoded(noise.convert("RGB"), "WEBP", lossless=True)]
    return [*made, encoded(noise, "BMP"), encoded(noise, "GIF")]


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def png_of(width: int, height: int, *chunks: bytes, colours: int = 0) -> bytes:
    header = struct.pack("!IIBBBBB", width, height, 8, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + b"".join(chunks) + png_chunk(b"IEND", b"")


def known_to_hurt() -> list[bytes]:
    """Pictures that once stopped this server, and their relatives."""
    flat = zlib.compress(bytes(4_001 * 4_000))
    whole = encoded(Image.new("L", (3_000, 3_000), 90), "JPEG", progressive=True)
    last, end = whole.rindex(b"\xff\xda"), whole.rindex(b"\xff\xd9")
    return [
        # 25 million pixels in a row, run-length coded
        b"BM"
        + struct.pack("<IHHI", 1084, 0, 0, 1078)
        + struct.pack("<IiiHHIIiiII", 40, 24_999_999, 1, 1, 8, 1, 6, 0, 0, 256, 0)
        + bytes(1024)
        + b"\xff\x00\x00\x01" * 1,
        whole[:end] + whole[last:end] * 3_000 + whole[end:],  # a minute of scans
        png_of(4_000, 4_000, png_chunk(b"IDAT", flat)),  # as large as is allowed
        png_of(65_535, 65_535, png_chunk(b"IDAT", flat)),
        png_of(2**31 - 1, 2**31 - 1, png_chunk(b"IDAT", b"")),
        png_of(1, 1, png_chunk(b"eXIf", b"II*\0"), png_chunk(b"IDAT", zlib.compress(bytes(2)))),
        png_of(9, 9, png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(60_000_000), 9)), png_chunk(b"IDAT", b"")),
        png_of(9, 9, png_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(30_000_000), 9)), png_chunk(b"IDAT", b"")),
    ]


class Hostile:
    """Makes requests, each as the bytes to send; the same for the same seed."""

    def __init__(self, host: str, seed: int) -> None:
        self.host, self.chance = host, random.Random(seed)
        self.pictures, self.hurting = seeds(), known_to_hurt()
        self.kinds: tuple[Callable[[], bytes], ...] = (
            self.picture, self.picture, self.picture, self.form, self.form, self.json, self.framing, self.framing, self.hurt,
        )  # fmt: skip

    def request(self) -> bytes:
        return self.chance.choice(self.kinds)()

    def mutated(self, content: bytes, most: int = 30) -> bytes:
        """Bytes changed, moved, doubled or cut off, most of them near the beginning, where the decisions are."""
        chance, data = self.chance, bytearray(content)
        for _ in range(chance.randrange(1, most)):
            place = chance.randrange(max(1, min(len(data), chance.choice([32, 128, 100_000]))))
            match chance.randrange(8):
                case 0:
                    del data[place : place + chance.randrange(1, 9)]
                case 1:
                    data[place:place] = data[place : place + chance.randrange(1, 40)]
                case 2:
                    data[place:place] = chance.choice(
                        [b"\r\n", b"\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b'"', b"{"]
                    )
                case _:
                    data[place : place + 1] = bytes([chance.randrange(256)])
        return bytes(data[: chance.randrange(1, len(data) + 1)] if chance.random() < 0.2 else data)

    def post(self, kind: str, body: bytes, *more: str) -> bytes:
        head = [f"POST /predict{self.chance.choice(QUERIES)} HTTP/1.1", f"Host: {self.host}", f"Content-Type: {kind}"]
        return "\r\n".join([*head, *more, f"Content-Length: {len(body)}", "", ""]).encode("latin-1", "replace") + body

    def picture(self) -> bytes:
        return self.post("image/png", self.mutated(self.chance.choice(self.pictures)))

    def hurt(self) -> bytes:
        return self.post("image/jpeg", self.chance.choice(self.hurting))

    def form(self) -> bytes:
        chance = self.chance
        name = chance.choice(["image", "image", "text", "ü-" * 300, "a" * 3_000, 'x"; name="image'])
        head = f'Content-Disposition: form-data; name="{name}"; filename="a"; charset={chance.choice(CODECS)}'
        part = b"--edge\r\n" + head.encode() + b"\r\n\r\n" + chance.choice(self.pictures) + b"\r\n"
        body = part * chance.choice([1, 1, 2, 50]) + b"--edge--\r\n"
        if chance.random() < 0.6:
            body = self.mutated(body)
        return self.post(f"multipart/form-data; boundary=edge; charset={chance.choice(CODECS)}", body)

    def json(self) -> bytes:
        chance = self.chance
        picture = base64.b64encode(self.mutated(chance.choice(self.pictures))).decode()
        value = chance.choice(
            [picture, picture, f"data:image/png;base64,{picture}", None, 3, "", "%", [1] * 50, {"a": "b"}]
        )
        body = json.dumps({"image": value}).encode()
        body = chance.choice([body, self.mutated(body, 6), b"[" * 50_000, b'{"image":' + b"9" * 5_000 + b"}"])
        return self.post("application/json", body)

    def framing(self) -> bytes:
        """HTTP itself, mutated, or said in a way that parsers disagree about."""
        chance, body = self.chance, self.chance.choice(self.pictures)
        chunks = b"".join(b"%x\r\n" % len(part) + part + b"\r\n" for part in (body[:7], body[7:])) + b"0\r\n\r\n"
        plain = self.post("image/png", body)
        head = f"POST /predict HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: image/png\r\n".encode()
        return chance.choice([
            self.mutated(plain, 8),
            self.mutated(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks, 8),
            head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 3_000,
            head + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunks,
            head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + body,
            head + b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n",
            head + b"X: " + b"a" * chance.choice([15_000, 70_000]) + b"\r\n\r\n",
            head + b"X: a\r\n" * 3_000 + b"\r\n",
            plain.replace(self.host.encode(), b"attacker.example"),
            head + b"Origin: https://attacker.example\r\nContent-Length: 0\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: " + self.host.encode() + b"\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + chance.randbytes(60),
            b"CONNECT example.org:80 HTTP/1.1\r\nHost: " + self.host.encode() + b"\r\n\r\n",
            b"OPTIONS * HTTP/1.0\r\n\r\n",
            b"GET /%2e%2e/%ff%00 HTTP/1.1\r\nHost: " + self.host.encode() + b"\r\n\r\n",
        ])  # fmt: skip
