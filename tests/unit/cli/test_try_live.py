"""`endpick try --from`: the pool as a running picker sees it."""

from __future__ import annotations

import json

from endpick.cli.dry_run import _live


class Picker:
    """Answers as the admin API does."""

    def get(self, *path, **query):
        assert path == ("endpoints",)
        usual = {"namespace": "default", "address": "10.0.0.1", "port": 8000, "labels": {}}
        ejected = {"endpoint-health": {"state": "ejected", "reason": "5 consecutive failures"}}
        return {"endpoints": [{"name": "a", "data": {}, **usual}, {"name": "b", "data": ejected, **usual}], "pool": {}}


def test_an_ejected_endpoint_is_left_out(capsys):
    found = json.loads(_live(Picker()))
    assert [endpoint["name"] for endpoint in found["endpoints"]] == ["a"]
    assert capsys.readouterr().err == "warning: default/b is left out, because the running endpick has ejected it\n"
