"""Estimates tokens without a tokenizer."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from struct import unpack_from
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from xxhash import xxh64_intdigest

from endpick.api import InferenceRequest, Media, Modality
from endpick.api.keys import MediaPlace, PromptTokens
from endpick.api.request import Piece
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.producers.prompt_blocks import BYTES_PER_TOKEN

_HEAD_BYTES = 48 * 1024  # a JPEG may begin with a preview
_MOST_SEGMENTS = 32  # cameras write about ten before the size
_ENCODING = "base64,"
_LONGEST_TYPE = 1024
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # segments with the size


def image_size(url: str) -> tuple[int, int] | None:
    """Read the size of a PNG, GIF or JPEG from the head of a base64 `data:image/` URL; else None."""
    if not url.startswith("data:image/"):
        return None
    start = url.find(_ENCODING, 0, _LONGEST_TYPE) + len(_ENCODING)
    if start < len(_ENCODING):
        return None
    try:
        size = _size_in(url, start)
    except (binascii.Error, ValueError):
        return None
    return size if size is not None and min(size) > 0 else None


def _bytes_at(url: str, start: int, place: int) -> bytes:
    """Decode at least 24 bytes from a position on, or the rest; raises ValueError for invalid base64."""
    first = place // 3 * 4
    encoded = url[start + first : start + first + 36]
    return base64.b64decode(encoded[: len(encoded) - len(encoded) % 4], validate=True)[place % 3 :]


def _size_in(url: str, start: int) -> tuple[int, int] | None:
    content = _bytes_at(url, start, 0)
    if content.startswith(_PNG) and len(content) >= 24:
        width, height = unpack_from(">II", content, 16)
        return width, height
    if content.startswith((b"GIF87a", b"GIF89a")) and len(content) >= 10:
        width, height = unpack_from("<HH", content, 6)
        return width, height
    return _jpeg_size(url, start) if content.startswith(b"\xff\xd8") else None


def _jpeg_size(url: str, start: int) -> tuple[int, int] | None:
    place = 2
    for _ in range(_MOST_SEGMENTS):
        segment = _bytes_at(url, start, place) if place < _HEAD_BYTES else b""
        if len(segment) < 9 or segment[0] != 0xFF:
            return None
        marker, length = segment[1], int.from_bytes(segment[2:4], "big")
        if marker in _JPEG_SIZES:
            height, width = unpack_from(">HH", segment, 5)
            return width, height
        if length < 2:
            return None
        place += 2 + length
    return None


VIDEO_FPS = "x-llm-d-video-fps"
VIDEO_DURATION = "x-llm-d-video-duration-seconds"
VIDEO_RESOLUTION = "x-llm-d-video-resolution"
_MAX_NUMBER = 1e9
_LONGEST_NUMBER = 32


class Resolution(CamelParameters):
    """The size to assume for media of unknown size, in pixels."""

    width: Annotated[int, Field(gt=0, le=65536, description="Width in pixels.")] = 640
    height: Annotated[int, Field(gt=0, le=65536, description="Height in pixels.")] = 360


class DynamicTokens(CamelParameters):
    """Counts tokens in proportion to pixels."""

    factor: Annotated[int, Field(gt=0, description="Pixels per token.")] = 1024


class StaticImage(CamelParameters):
    """Counts the same number of tokens for every image."""

    static_token: Annotated[int, Field(ge=0, description="Tokens per image; 0 counts as 1.")] = 0


class ImageEstimate(CamelParameters):
    """Sets how the tokens of an image are estimated."""

    mode: Annotated[Literal["dynamic", "static"], Field(description="`dynamic`: width * height / factor; `static`: constant.")] = "dynamic"
    default_resolution: Annotated[Resolution, Field(description="For images of unknown size, such as links.")] = Resolution()
    dynamic: Annotated[DynamicTokens, Field(description="For `dynamic`.")] = DynamicTokens()
    static: Annotated[StaticImage, Field(description="For `static`.")] = StaticImage()

    def tokens(self, url: str) -> int:
        """Return max(1, width * height // factor), or the constant."""
        if self.mode == "static":
            return self.static.static_token or 1
        width, height = image_size(url) or (self.default_resolution.width, self.default_resolution.height)
        return max(1, width * height // self.dynamic.factor)


class StaticFrame(CamelParameters):
    """Counts the same number of tokens for every frame."""

    num_tokens_per_frame: Annotated[int, Field(ge=0, description="Tokens per frame; 0 counts as 1.")] = 0


class FrameTokens(CamelParameters):
    """Sets how the tokens of a video frame are estimated."""

    mode: Annotated[Literal["dynamic", "static"], Field(description="As for images.")] = "dynamic"
    dynamic: Annotated[DynamicTokens, Field(description="For `dynamic`.")] = DynamicTokens()
    static: Annotated[StaticFrame, Field(description="For `static`.")] = StaticFrame()


class SampledFrames(CamelParameters):
    """Counts frames sampled at a fixed rate."""

    sample_fps: Annotated[float, Field(alias="sampleFPS", gt=0, description="Frames sampled per second.")] = 2.0
    temporal_patch_size: Annotated[int, Field(ge=0, description="Frames merged into one group of tokens; 0 and 1 merge none.")] = 0


class StridedFrames(CamelParameters):
    """Counts every n-th frame of a video."""

    default_source_fps: Annotated[
        float, Field(alias="defaultSourceFPS", gt=0, description=f"Frames per second without a header `{VIDEO_FPS}`.")
    ] = 24.0
    frame_stride: Annotated[int, Field(gt=0, description="Distance between used frames.")] = 1


class FrameCount(CamelParameters):
    """Sets which frames of a video count."""

    mode: Annotated[Literal["sampled", "strided"], Field(description="`sampled`: by time; `strided`: by frame.")] = "sampled"
    min_frames: Annotated[int, Field(ge=0, description="Minimum number of frames; 0: no limit.")] = 0
    max_frames: Annotated[int, Field(ge=0, description="Maximum number of frames; 0: no limit.")] = 0
    sampled: Annotated[SampledFrames, Field(description="For `sampled`.")] = SampledFrames()
    strided: Annotated[StridedFrames, Field(description="For `strided`.")] = StridedFrames()

    def frames(self, seconds: float, source_fps: float | None) -> int:
        """sampled: clamp(int(seconds * sampleFPS)) // temporalPatchSize; strided: clamp(int(seconds * source fps) // frameStride)."""
        if self.mode == "strided":
            return self._clamped(int(seconds * (source_fps or self.strided.default_source_fps)) // self.strided.frame_stride)
        return self._clamped(int(seconds * self.sampled.sample_fps)) // max(1, self.sampled.temporal_patch_size)

    def _clamped(self, frames: int) -> int:
        frames = max(frames, self.min_frames)
        return min(frames, self.max_frames) if self.max_frames else frames


class VideoEstimate(CamelParameters):
    """Sets how the tokens of a video are estimated: max(1, min(frames * tokens per frame, maxVideoTokens))."""

    default_resolution: Annotated[Resolution, Field(description=f"Without a header `{VIDEO_RESOLUTION}` (`640x360`).")] = Resolution()
    default_duration: Annotated[float, Field(gt=0, description=f"Seconds without a header `{VIDEO_DURATION}`.")] = 10.0
    tokens_per_frame: Annotated[FrameTokens, Field(description="Tokens counted per frame.")] = FrameTokens()
    frames: Annotated[FrameCount, Field(description="Frames that count.")] = FrameCount()
    max_video_tokens: Annotated[int, Field(ge=0, description="Maximum tokens per video; 0: no limit.")] = 0

    def tokens(self, headers: Mapping[str, str]) -> int:
        seconds = _positive(headers.get(VIDEO_DURATION)) or self.default_duration
        tokens = self.frames.frames(seconds, _positive(headers.get(VIDEO_FPS))) * self._tokens_per_frame(headers.get(VIDEO_RESOLUTION))
        return max(1, min(tokens, self.max_video_tokens) if self.max_video_tokens else tokens)

    def _tokens_per_frame(self, resolution: str | None) -> int:
        counted = self.tokens_per_frame
        if counted.mode == "static":
            return counted.static.num_tokens_per_frame or 1
        width, height = _pixels(resolution) or (self.default_resolution.width, self.default_resolution.height)
        return max(1, width * height // counted.dynamic.factor)


class EstimateParameters(CamelParameters):
    """Sets how tokens are estimated by kind of media."""

    image: Annotated[ImageEstimate, Field(description="Images.")] = ImageEstimate()
    video: Annotated[VideoEstimate, Field(description="Videos.")] = VideoEstimate()

    def tokens(self, media: Media, headers: Mapping[str, str]) -> int:
        """Estimate the tokens of images and videos as configured, of audio as max(1, ceil(bytes / 4))."""
        match media.modality:
            case Modality.IMAGE:
                return self.image.tokens(media.content)
            case Modality.VIDEO:
                return self.video.tokens(headers)
            case Modality.AUDIO:
                return max(1, (len(media.content) + 3) // 4)


def _positive(text: str | None) -> float | None:
    try:
        number = float(text) if text and len(text) <= _LONGEST_NUMBER else 0.0
    except ValueError:
        return None
    return min(number, _MAX_NUMBER) if math.isfinite(number) and number > 0 else None


def _pixels(text: str | None) -> tuple[int, int] | None:
    width, _, height = (text or "").lower().partition("x")
    if not (width.isascii() and width.isdigit() and height.isascii() and height.isdigit() and len(width) < 10 and len(height) < 10):
        return None
    size = int(width), int(height)
    return size if min(size) > 0 else None


MAX_MEDIA_TOKENS = 1 << 18  # clients can claim any size
_TOKEN_TYPE = np.dtype("<u4")
_LOW_32_BITS = 0xFFFFFFFF


def identifier_of(media: Media) -> str:
    """Return xxh64 of the content as 16 hexadecimal digits."""
    return f"{_hash(media):016x}"


def _hash(media: Media) -> int:
    return xxh64_intdigest(media.content.encode("utf-8", "surrogatepass"))


def packed(text: bytes) -> PromptTokens:
    """Pack text as little-endian tokens of four bytes, zero-padded."""
    padded = text + bytes(-len(text) % BYTES_PER_TOKEN)
    return PromptTokens(np.frombuffer(padded, dtype=_TOKEN_TYPE))


def estimated(request: InferenceRequest, parameters: EstimateParameters) -> tuple[PromptTokens, ...]:
    """Estimate the tokens of each prompt; media begin at a token boundary."""
    if not request.prompt.media:
        return tuple(packed(text) for text in request.prompt.texts)
    budget = MAX_MEDIA_TOKENS
    prompts: list[PromptTokens] = []
    for pieces in request.prompt.pieces:
        tokens = _with_media(pieces, request.headers, parameters, budget)
        budget -= sum(place.length for place in tokens.media)
        prompts.append(tokens)
    return tuple(prompts)


def _with_media(pieces: Sequence[Piece], headers: Mapping[str, str], parameters: EstimateParameters, budget: int) -> PromptTokens:
    content = bytearray()
    places: list[MediaPlace] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            content += piece
            continue
        content += bytes(-len(content) % BYTES_PER_TOKEN)
        count = max(1, min(parameters.tokens(piece, headers), budget))
        budget -= count
        digest = _hash(piece)
        places.append(MediaPlace(piece.modality, f"{digest:016x}", len(content) // BYTES_PER_TOKEN, count))
        content += (digest & _LOW_32_BITS).to_bytes(BYTES_PER_TOKEN, "little") * count
    content += bytes(-len(content) % BYTES_PER_TOKEN)
    token_ids = np.frombuffer(content, dtype=_TOKEN_TYPE)
    token_ids.flags.writeable = False
    return PromptTokens(token_ids, tuple(places))
