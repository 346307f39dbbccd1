"""What a plan loses when the gateway keeps bodies to itself."""

from __future__ import annotations

from endpick.requests.incoming import Delivery
from endpick.requests.pipeline import Pipeline


def losses(pipeline: Pipeline, delivery: Delivery) -> tuple[str, ...]:
    """One sentence for each instance that sees less than it could; none when the gateway sends both bodies."""
    lost: list[str] = []
    if not delivery.sees_request_body:
        lost += [f"{parser.parse.instance.name} reads no model, prompt or limits" for parser in pipeline.parsers.each]
        lost += [f"{producer.step.instance.name} sees an empty prompt" for producer in pipeline.producers]
    if not delivery.sees_response_body:
        lost += [f"{parser.parse.instance.name} reads no usage" for parser in pipeline.parsers.each if parser.usage is not None]
        lost += [
            f"{observer.first_chunk.instance.name} does not learn when a response begins, only when it ends"
            for observer in pipeline.observers
            if observer.first_chunk is not None
        ]
    return tuple(lost)
