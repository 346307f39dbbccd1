"""What a plan loses when the gateway keeps bodies to itself."""

from __future__ import annotations

from endpick.requests.incoming import Delivery
from endpick.requests.pipeline import Pipeline


def losses(pipeline: Pipeline, delivery: Delivery) -> tuple[str, ...]:
    """A sentence for each thing that an instance does not see; none when the gateway sends both bodies."""
    lost: list[str] = []
    if not delivery.sees_request_body:
        lost += [f"{parser.parse.instance.name} reads no model, prompt or limits" for parser in pipeline.parsers.each]
        lost += [f"{producer.step.instance.name} sees an empty prompt" for producer in pipeline.producers]
    if not delivery.sees_response_body:
        lost += [f"{parser.parse.instance.name} reads no usage" for parser in pipeline.parsers.each if parser.usage is not None]
        observers = pipeline.observers
        lost += [
            f"{each.first_chunk.instance.name} does not learn when a response begins" for each in observers if each.first_chunk is not None
        ]
        # Whether the gateway sends trailers is in no message of the protocol until they come.
        lost += [
            f"{each.ended.instance.name} takes responses for over at their headers unless the gateway has response_trailer_mode: SEND"
            for each in observers
            if each.ended is not None
        ]
    return tuple(lost)
