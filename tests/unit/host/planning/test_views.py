"""A plan as others see it: as a document, as a picture, as text that is drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from endpick.cli.plan import mermaid
from endpick.engine.plan_document import Arrow, Node, Picture, document_of, picture_of
from unit.host.planning.planned import plan

SCHEMAS = Path(__file__).parents[4] / "schemas"

BODY = """
    plugins:
      - {type: match-scorer}
      - {type: queue-scorer}
      - {type: spice-scorer}
    schedulingProfiles:
      - name: default
        plugins:
          - {pluginRef: match-scorer, weight: 2}
          - {pluginRef: queue-scorer}
          - {pluginRef: spice-scorer}
    """


def picture() -> Picture:
    return picture_of(plan(BODY).plan)


def test_the_document_tells_the_whole_plan() -> None:
    document = document_of(plan(BODY).plan).model_dump(mode="json", by_alias=True)

    assert document["profiles"][0] == {
        "name": "default",
        "filters": [],
        "scorers": [
            {"instance": "match-scorer", "weight": 2.0, "weightGiven": True},
            {"instance": "queue-scorer", "weight": 1.0, "weightGiven": False},
            {"instance": "spice-scorer", "weight": 1.0, "weightGiven": False},
        ],
        "picker": "max-score-picker",
        "reads": ["zoo/match", "zoo/queue", "zoo/tokens"],
    }
    matcher = next(one for one in document["instances"] if one["name"] == "matcher")
    assert matcher == {
        "name": "matcher",
        "type": "matcher",
        "kinds": ["data-producer"],
        "distribution": "zoo",
        "version": "1.0",
        "path": None,
        "reason": "'match-scorer' needs 'zoo/match' and nothing else produces it",
        "onFault": "skip",
        "consumes": ["zoo/tokens"],
        "consumesOptional": [],
        "produces": ["zoo/match"],
    }
    assert {"consumer": "matcher", "key": "zoo/tokens", "producer": "tokenizer", "required": True, "scope": "request"} in document[
        "subscriptions"
    ]
    assert document["instances"][0]["path"] == ["plugins", 0]


@pytest.mark.parametrize(("name", "view"), [("plan", document_of), ("graph", picture_of)])
def test_documents_satisfy_the_published_schemas(name: str, view) -> None:
    schema = json.loads((SCHEMAS / f"{name}.v1.json").read_text())

    jsonschema.Draft202012Validator(schema).validate(view(plan(BODY).plan).model_dump(mode="json", by_alias=True))


def test_picture_holds_every_flow_once() -> None:
    drawn = picture()

    assert [(arrow.giver, arrow.taker, arrow.what, arrow.flow, arrow.needed) for arrow in drawn.arrows] == [
        ("core-metrics-extractor", "queue-scorer", ("zoo/queue",), "data", True),
        ("matcher", "match-scorer", ("zoo/match",), "data", True),
        ("metrics-data-source", "core-metrics-extractor", ("Page",), "payload", True),
        ("tokenizer", "matcher", ("zoo/tokens",), "data", True),
    ]
    assert {node.name for node in drawn.nodes if node.added} == {"core-metrics-extractor", "matcher", "metrics-data-source", "tokenizer"}
    assert "spice-scorer" not in {node.name for node in drawn.nodes}


def test_a_collector_that_no_instance_reads_is_drawn_as_idle() -> None:
    (arrow,) = picture_of(plan("plugins: [{type: plain-scorer}]").plan).arrows

    assert (arrow.giver, arrow.taker, arrow.needed) == ("metrics-data-source", "core-metrics-extractor", False)


def test_mermaid_names_every_node_and_labels_every_arrow() -> None:
    text = mermaid(picture())

    assert text.splitlines()[0] == "flowchart LR"
    nodes = dict(re.findall(r'^  (n\d+)\["([^"]+)"\]$', text, re.MULTILINE))
    arrows = {
        (nodes[giver], nodes[taker], what) for giver, what, taker in re.findall(r'^  (n\d+) -->\|"([^"]+)"\| (n\d+)$', text, re.MULTILINE)
    }
    assert ("matcher", "match-scorer", "zoo/match") in arrows
    assert len(arrows) == 4


def strange(name: str) -> Picture:
    node = Node(name=name, type="x", kinds=(), added=False)
    other = Node(name="other", type="x", kinds=(), added=False)
    arrow = Arrow(giver=name, taker="other", what=('k"<&\\',), flow="data", needed=False)
    return Picture(config="a<b>.yaml", nodes=(node, other), arrows=(arrow,))


def test_names_that_mean_something_to_the_drawer_are_escaped() -> None:
    name = 'a"]<script>\\'

    assert "<script>" not in mermaid(strange(name))
    assert '"a#34;#93;#60;script#62;#92;"' in mermaid(strange(name))


def test_an_empty_picture_can_be_drawn() -> None:
    empty = Picture(config="x", nodes=(), arrows=())

    assert mermaid(empty) == "flowchart LR\n"
