"""Who may load code into the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from endpick.diagnostics import Code
from endpick.host.discovery import Candidate
from endpick.host.resolution import Policy, Reference, check_policy

ACME = Candidate("acme.scorer", 1, "acme-x", "2.1", "m:C", "/p")
BUILTIN = Candidate("queue-scorer", 1, "endpick", "0.1.0", "m:C", "/q", is_builtin=True)


def verdict(candidate, policy):
    diagnostic = check_policy(Reference(candidate.type), candidate, policy)
    return None if diagnostic is None else diagnostic.help


@pytest.mark.parametrize("policy", [Policy(), Policy(("acme_X",)), Policy(("other", "Acme.x"), ("acme.filter", "acme"))])
def test_what_is_allowed_passes(policy):
    assert verdict(ACME, policy) is None


@pytest.mark.parametrize("pattern", ["acme.scorer", "acme.*", "*"])
def test_a_denied_type_is_refused_whichever_distribution_offers_it(pattern):
    assert (
        verdict(ACME, Policy(("acme-x",), ("other", pattern))) == f"remove '{pattern}' from pluginPolicy.denyTypes, or use another plugin"
    )


def test_a_builtin_type_can_be_denied_but_endpick_needs_no_permission():
    assert verdict(BUILTIN, Policy(())) is None
    assert verdict(BUILTIN, Policy(None, ("queue-scorer",))) is not None


@pytest.mark.parametrize("allowed", [(), ("acme",), ("acme-xy", "cme-x")])
def test_an_allow_list_keeps_the_others_out(allowed):
    diagnostic = check_policy(Reference("acme.scorer"), ACME, Policy(allowed))

    assert diagnostic.code is Code.E0307
    assert diagnostic.message == "the distribution acme-x 2.1 is not allowed by pluginPolicy"
    assert diagnostic.help == "add the line `- acme-x` to pluginPolicy.allowDistributions"


def test_patterns_match_case():
    assert Policy(None, ("ACME.*",)).denies_type("acme.scorer") is None


def test_the_name_endpick_alone_is_no_permission():
    fake = replace(BUILTIN, is_builtin=False)

    diagnostic = check_policy(Reference("queue-scorer"), fake, Policy(("acme",)))

    assert diagnostic.code is Code.E0307
    assert diagnostic.notes[0].startswith("/q bears endpick's name, but the endpick that runs is ")


@pytest.mark.parametrize(("candidate", "policy"), [(ACME, Policy(("acme-x",))), (replace(BUILTIN, is_builtin=False), Policy())])
def test_a_name_that_has_to_decide_may_be_borne_once(candidate, policy):
    diagnostic = check_policy(Reference(candidate.type), replace(candidate, rivals=("/r",)), policy)

    assert diagnostic.code is Code.E0323
    assert diagnostic.notes == (f"{candidate.origin} at {candidate.metadata_path} counts", "/r bears the name, too")


def test_a_name_that_decides_nothing_may_be_borne_twice():
    assert check_policy(Reference("acme.scorer"), replace(ACME, rivals=("/r",)), Policy()) is None
