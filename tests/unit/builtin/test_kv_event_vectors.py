"""Golden vectors and captured events of the precise prefix cache."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

import yaml_files
from endpick.api import Modality
from endpick.api.keys import MediaPlace, PromptTokens
from endpick_kv_events.block_index import BlockKeys, HashAlgorithm, TierIndex
from endpick_kv_events.engine_blocks import EngineBlocks
from endpick_kv_events.messages import BlocksStored, decode
from endpick_kv_events.plugins import block_extras
from unit.builtin.vectors import each

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "tests/fixtures/vectors"
CAPTURED = Path(os.environ.get("ENDPICK_TEST_DATA", ROOT.parent / "shared/data")) / "kv-events/vllm-0.32.0.jsonl"
WEIGHTS = {"gpu": 1.0, "cpu": 0.8}


def cases(topic):
    loaded = yaml_files.load(VECTORS / f"{topic}.yaml")
    return [pytest.param(case, id=f"{case.get('algorithm', '')} {case['case']}".strip()) for case in loaded]


def tokens(ids):
    return np.array(ids, dtype=np.uint32)


@each(cases("block-keys"))
def test_block_keys_match_llm_d(case):
    keys = BlockKeys(case["block_size_tokens"], HashAlgorithm(case["algorithm"]), case["seed"])
    chain = keys.chain(keys.root(case["model"]), tokens(case["tokens"]), [tuple(one) for one in case["extras"]])
    assert [f"{key:016x}" for key in chain] == case["expect"]


@each(cases("kv-events"))
def test_events_leave_the_expected_matches(case):
    keys, index = BlockKeys(4), TierIndex(WEIGHTS)
    for name, messages in case["events"].items():
        engine = EngineBlocks(index, index.slot(name), keys, 1000)
        for events in messages:
            engine.apply(decode(msgspec.msgpack.encode([1.5, events, 0])).events, "m")
    media = tuple(MediaPlace(Modality.IMAGE, **place) for place in case.get("media", ()))
    prompt = PromptTokens(tokens(case["prompt"]), media)
    chain = keys.chain(keys.root(case.get("model", "m")), prompt.token_ids, block_extras(prompt, case.get("salt", ""), 4))
    slots = dict(zip(case["expect"], index.slots(case["expect"]), strict=True))
    match = index.match(chain)
    found = {name: [match.blocks[slot], pytest.approx(match.weighted[slot])] for name, slot in slots.items()}
    assert found == case["expect"]


def captured():
    if not CAPTURED.exists():
        pytest.skip(f"there are no captured events at {CAPTURED}; set ENDPICK_TEST_DATA to the folder that holds kv-events/")
    for line in CAPTURED.read_text().splitlines():
        frames = json.loads(line)
        yield decode(base64.b64decode(frames["payload"]))


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_captured_vllm_events_are_followed_to_their_reset(block_size):
    index = TierIndex(WEIGHTS)
    engine = EngineBlocks(index, index.slot("a"), BlockKeys(block_size), 10_000)
    stored = removed = most = 0
    skipped: dict[str, int] = {}
    for batch in captured():
        assert batch.undecodable == 0
        applied = engine.apply(batch.events, "tiny")
        stored += applied.admitted
        removed += applied.evicted
        most = max(most, len(engine))
        for (_, reason), count in [*applied.skipped_stores.items(), *applied.skipped_removals.items()]:
            skipped[reason] = skipped.get(reason, 0) + count
    # Messages 30 to 207 of the run are not in the file: blocks that they stored are unknown to those after them.
    assert stored == removed == 284
    assert skipped == {"unknown-parent": 38, "unknown-block": 40}
    assert most > 100
    assert (len(engine), index.size) == (0, 0)


def test_captured_prompts_are_found_with_their_adapter_only():
    index, keys = TierIndex(WEIGHTS), BlockKeys(32)
    engine = EngineBlocks(index, index.slot("a"), keys, 10_000)
    prompts = {}
    for batch in list(captured())[:30]:
        engine.apply(batch.events, "tiny")
        for event in batch.events:
            if isinstance(event, BlocksStored) and event.parent is None:
                prompts[event.adapter or "tiny"] = event.tokens
    assert set(prompts) == {"tiny", "tiny-lora"}
    for model, ids in prompts.items():
        assert index.match(keys.chain(keys.root(model), ids)).blocks.tolist() == [len(ids) // 32]
        other = {"tiny": "tiny-lora", "tiny-lora": "tiny"}[model]
        assert index.match(keys.chain(keys.root(other), ids)).blocks[0] < len(ids) // 32
