"""The defaults of `endpick serve` are those of the process and its transports."""

from __future__ import annotations

from dataclasses import replace

from endpick.cli.serve import command
from endpick.cli.serve_options import ServeOptions, settings_of
from endpick.serve.settings import HEALTH_LIMITS, ServeSettings
from endpick.transport.listener import ListenSettings
from endpick.transport.tls import TlsSettings


def test_defaults_of_flags_equal_those_of_the_settings():
    parsed = ServeOptions(**command.make_context("serve", []).params)
    settings = settings_of(parsed)

    assert parsed == ServeOptions()

    expected = ServeSettings(
        ext_proc=ListenSettings(port=9002, tls=TlsSettings()), health=ListenSettings(port=9003, limits=HEALTH_LIMITS), metrics_port=9090
    )
    assert settings == replace(expected, max_memory_bytes=settings.max_memory_bytes)
