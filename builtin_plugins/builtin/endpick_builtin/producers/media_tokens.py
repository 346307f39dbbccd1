"""Estimated number of tokens of images, videos and audio."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from endpick.api import Media, Modality, Parameters
from endpick_builtin.producers.image_size import image_size

VIDEO_FPS = "x-llm-d-video-fps"
VIDEO_DURATION = "x-llm-d-video-duration-seconds"
VIDEO_RESOLUTION = "x-llm-d-video-resolution"
_MAX_NUMBER = 1e9


class Resolution(Parameters):
    """Width and height in pixels."""

    width: Annotated[int, Field(gt=0, le=65536, description="Width in pixels.")] = 640
    height: Annotated[int, Field(gt=0, le=65536, description="Height in pixels.")] = 360


class DynamicTokens(Parameters):
    """Tokens in proportion to pixels."""

    factor: Annotated[int, Field(gt=0, description="Pixels per token.")] = 1024


class StaticImage(Parameters):
    """The same for every image."""

    static_token: Annotated[int, Field(alias="staticToken", ge=0, description="Tokens per image; 0 counts as 1.")] = 0


class ImageEstimate(Parameters):
    """Tokens of an image."""

    mode: Annotated[Literal["dynamic", "static"], Field(description="`dynamic`: width * height / factor; `static`: constant.")] = "dynamic"
    default_resolution: Annotated[
        Resolution, Field(alias="defaultResolution", description="For images of unknown size, such as links.")
    ] = Resolution()
    dynamic: Annotated[DynamicTokens, Field(description="For `dynamic`.")] = DynamicTokens()
    static: Annotated[StaticImage, Field(description="For `static`.")] = StaticImage()

    def tokens(self, url: str) -> int:
        """Tokens of the image at a URL: max(1, width * height // factor), or the constant."""
        if self.mode == "static":
            return self.static.static_token or 1
        width, height = image_size(url) or (self.default_resolution.width, self.default_resolution.height)
        return max(1, width * height // self.dynamic.factor)


class StaticFrame(Parameters):
    """The same for every frame."""

    num_tokens_per_frame: Annotated[int, Field(alias="numTokensPerFrame", ge=0, description="Tokens per frame; 0 counts as 1.")] = 0


class FrameTokens(Parameters):
    """Tokens of a frame."""

    mode: Annotated[Literal["dynamic", "static"], Field(description="As for images.")] = "dynamic"
    dynamic: Annotated[DynamicTokens, Field(description="For `dynamic`.")] = DynamicTokens()
    static: Annotated[StaticFrame, Field(description="For `static`.")] = StaticFrame()


class SampledFrames(Parameters):
    """Frames sampled at a fixed rate."""

    sample_fps: Annotated[float, Field(alias="sampleFPS", gt=0, description="Frames sampled per second.")] = 2.0
    temporal_patch_size: Annotated[
        int, Field(alias="temporalPatchSize", ge=0, description="Frames merged into one group of tokens; 0 and 1 merge none.")
    ] = 0


class StridedFrames(Parameters):
    """Every n-th frame."""

    default_source_fps: Annotated[
        float, Field(alias="defaultSourceFPS", gt=0, description=f"Frames per second without a header `{VIDEO_FPS}`.")
    ] = 24.0
    frame_stride: Annotated[int, Field(alias="frameStride", gt=0, description="Distance between used frames.")] = 1


class FrameCount(Parameters):
    """Frames of a video."""

    mode: Annotated[Literal["sampled", "strided"], Field(description="`sampled`: by time; `strided`: by frame.")] = "sampled"
    min_frames: Annotated[int, Field(alias="minFrames", ge=0, description="Minimum number of frames; 0: no limit.")] = 0
    max_frames: Annotated[int, Field(alias="maxFrames", ge=0, description="Maximum number of frames; 0: no limit.")] = 0
    sampled: Annotated[SampledFrames, Field(description="For `sampled`.")] = SampledFrames()
    strided: Annotated[StridedFrames, Field(description="For `strided`.")] = StridedFrames()

    def frames(self, seconds: float, source_fps: float | None) -> int:
        """Groups of tokens in a video.

        sampled: clamp(int(seconds * sampleFPS)) // temporalPatchSize; strided: clamp(int(seconds * source fps) // frameStride).
        """
        if self.mode == "strided":
            return self._clamped(int(seconds * (source_fps or self.strided.default_source_fps)) // self.strided.frame_stride)
        return self._clamped(int(seconds * self.sampled.sample_fps)) // max(1, self.sampled.temporal_patch_size)

    def _clamped(self, frames: int) -> int:
        frames = max(frames, self.min_frames)
        return min(frames, self.max_frames) if self.max_frames else frames


class VideoEstimate(Parameters):
    """Tokens of a video: max(1, min(frames * tokens per frame, maxVideoTokens))."""

    default_resolution: Annotated[
        Resolution, Field(alias="defaultResolution", description=f"Without a header `{VIDEO_RESOLUTION}` (`640x360`).")
    ] = Resolution()
    default_duration: Annotated[
        float, Field(alias="defaultDuration", gt=0, description=f"Seconds without a header `{VIDEO_DURATION}`.")
    ] = 10.0
    tokens_per_frame: Annotated[FrameTokens, Field(alias="tokensPerFrame", description="Tokens counted per frame.")] = FrameTokens()
    frames: Annotated[FrameCount, Field(description="Frames that count.")] = FrameCount()
    max_video_tokens: Annotated[int, Field(alias="maxVideoTokens", ge=0, description="Maximum tokens per video; 0: no limit.")] = 0

    def tokens(self, headers: Mapping[str, str]) -> int:
        """Tokens of each video of a request."""
        seconds = _positive(headers.get(VIDEO_DURATION)) or self.default_duration
        tokens = self.frames.frames(seconds, _positive(headers.get(VIDEO_FPS))) * self._tokens_per_frame(headers.get(VIDEO_RESOLUTION))
        return max(1, min(tokens, self.max_video_tokens) if self.max_video_tokens else tokens)

    def _tokens_per_frame(self, resolution: str | None) -> int:
        counted = self.tokens_per_frame
        if counted.mode == "static":
            return counted.static.num_tokens_per_frame or 1
        width, height = _pixels(resolution) or (self.default_resolution.width, self.default_resolution.height)
        return max(1, width * height // counted.dynamic.factor)


class EstimateParameters(Parameters):
    """Estimates by kind of media."""

    image: Annotated[ImageEstimate, Field(description="Images.")] = ImageEstimate()
    video: Annotated[VideoEstimate, Field(description="Videos.")] = VideoEstimate()

    def tokens(self, media: Media, headers: Mapping[str, str]) -> int:
        """Tokens of one item; max(1, ceil(bytes / 4)) for audio."""
        match media.modality:
            case Modality.IMAGE:
                return self.image.tokens(media.content)
            case Modality.VIDEO:
                return self.video.tokens(headers)
            case Modality.AUDIO:
                return max(1, (len(media.content) + 3) // 4)


def _positive(text: str | None) -> float | None:
    try:
        number = float(text) if text else 0.0
    except ValueError:
        return None
    return min(number, _MAX_NUMBER) if math.isfinite(number) and number > 0 else None


def _pixels(text: str | None) -> tuple[int, int] | None:
    width, _, height = (text or "").lower().partition("x")
    if not (width.isascii() and width.isdigit() and height.isascii() and height.isdigit() and len(width) < 10 and len(height) < 10):
        return None
    size = int(width), int(height)
    return size if min(size) > 0 else None
